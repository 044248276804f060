//! Where the store is when nobody names one. The programs read the environment; the rule stands here.

use std::ffi::OsString;
use std::path::PathBuf;

/// The parts of the environment that say where a user's data lies.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// $TINYLLM_STORE.
    pub tinyllm_store: Option<OsString>,
    /// $XDG_DATA_HOME.
    pub xdg_data_home: Option<OsString>,
    /// $HOME.
    pub home: Option<OsString>,
    pub is_root: bool,
}

/// Finds the store: $TINYLLM_STORE, else `tinyllm` in the user's data directory, else (for root)
/// /var/lib/tinyllm. Empty variables count as absent. None when nothing says where it could be.
pub fn default_store(environment: Environment) -> Option<PathBuf> {
    let set = |value: Option<OsString>| value.filter(|text| !text.is_empty()).map(PathBuf::from);
    if let Some(store) = set(environment.tinyllm_store) {
        return Some(store);
    }
    if let Some(data) = set(environment.xdg_data_home) {
        return Some(data.join("tinyllm"));
    }
    if environment.is_root {
        return Some("/var/lib/tinyllm".into());
    }
    set(environment.home).map(|home| home.join(".local/share/tinyllm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_particular_place_wins() {
        let mut environment = Environment {
            tinyllm_store: Some("/s".into()),
            xdg_data_home: Some("/x".into()),
            home: Some("/h".into()),
            is_root: true,
        };
        let found = |environment: &Environment| default_store(environment.clone());
        assert_eq!(found(&environment), Some("/s".into()));
        environment.tinyllm_store = Some("".into());
        assert_eq!(found(&environment), Some("/x/tinyllm".into()));
        environment.xdg_data_home = None;
        assert_eq!(found(&environment), Some("/var/lib/tinyllm".into()));
        environment.is_root = false;
        assert_eq!(found(&environment), Some("/h/.local/share/tinyllm".into()));
        environment.home = None;
        assert_eq!(found(&environment), None);
    }
}
