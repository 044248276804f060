//! Which paths of the tree mean something: where a rename seals, and which names are derived.

use crate::catalog::Face;
use crate::names::{RunId, Step};

/// The file that names the newest complete step.
pub const LATEST_FILE: &[u8] = b"LATEST";
/// The relative link to it.
pub const LATEST_LINK: &[u8] = b"latest";
/// The virtual directory for inspection.
pub const INSPECTION_DIR: &[u8] = b".tinyllm";

pub const RUNS: &[u8] = b"runs";
pub const CKPT: &[u8] = b"ckpt";
pub const CHECKPOINTS: &[u8] = b"checkpoints";
pub const MODELS: &[u8] = b"models";

/// A final name that only a seal may give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealTarget {
    pub face: Face,
    /// The run, or a release's model id.
    pub run: String,
    pub step: Step,
    /// A release's version; empty otherwise.
    pub version: String,
}

impl SealTarget {
    /// Gives the tree path, `runs/<run>/ckpt/step-000500`.
    pub fn path(&self) -> Vec<Vec<u8>> {
        let run = self.run.as_bytes().to_vec();
        let step = self.step.dir_name().into_bytes();
        match self.face {
            Face::Resumable => vec![RUNS.to_vec(), run, CKPT.to_vec(), step],
            Face::Portable => vec![CHECKPOINTS.to_vec(), run, step],
            Face::Release => vec![MODELS.to_vec(), run, self.version.as_bytes().to_vec()],
            Face::Moved => vec![],
        }
    }

    pub fn resumable(run: &str, step: Step) -> Self {
        Self { face: Face::Resumable, run: run.to_owned(), step, version: String::new() }
    }

    pub fn portable(run: &str, step: Step) -> Self {
        Self { face: Face::Portable, ..Self::resumable(run, step) }
    }

    pub fn release(model: &str, version: &str) -> Self {
        let run = model.to_owned();
        Self { face: Face::Release, run, step: Step(0), version: version.to_owned() }
    }
}

/// Says what sealing a tree under this path would make it. None for plain paths.
///
/// Temporary names are plain: anything but an exact step name, and versions that start with a dot or end
/// in `.tmp`.
pub fn seal_target(path: &[impl AsRef<[u8]>]) -> Option<SealTarget> {
    let names: Option<Vec<&str>> = path.iter().map(|name| std::str::from_utf8(name.as_ref()).ok()).collect();
    match names?.as_slice() {
        ["runs", run, "ckpt", step] if run.parse::<RunId>().is_ok() => {
            Some(SealTarget::resumable(run, Step::from_dir_name(step)?))
        }
        // Other tools name runs more freely than this project does.
        ["checkpoints", run, step] => Some(SealTarget::portable(run, Step::from_dir_name(step)?)),
        ["models", model, version] if !version.starts_with('.') && !version.ends_with(".tmp") => {
            Some(SealTarget::release(model, version))
        }
        _ => None,
    }
}

/// Says whether a seal is the only way for something to get this path. Plain files may stand among versions, and
/// nothing but steps where steps stand.
pub fn comes_by_sealing_only(path: &[impl AsRef<[u8]>], is_dir: bool) -> bool {
    seal_target(path).is_some_and(|target| is_dir || target.face != Face::Release)
}

/// Says whether a file stands in a directory that a seal may take: one level below where steps and versions
/// stand.
pub fn is_staged(file: &[impl AsRef<[u8]>]) -> bool {
    let name = |at: usize| file.get(at).map(|name: &_| AsRef::<[u8]>::as_ref(name));
    match name(0) {
        Some(RUNS) => name(2) == Some(CKPT) && file.len() > 4,
        Some(CHECKPOINTS | MODELS) => file.len() > 3,
        _ => false,
    }
}

/// Says which run's LATEST and latest stand in this directory.
pub fn latest_home(dir: &[impl AsRef<[u8]>]) -> Option<(Face, String)> {
    let names: Option<Vec<&str>> = dir.iter().map(|name| std::str::from_utf8(name.as_ref()).ok()).collect();
    match names?.as_slice() {
        ["runs", run, "ckpt"] if run.parse::<RunId>().is_ok() => Some((Face::Resumable, (*run).to_owned())),
        ["checkpoints", run] => Some((Face::Portable, (*run).to_owned())),
        _ => None,
    }
}

/// Says whether final names stand in this directory.
pub fn has_final_names(dir: &[impl AsRef<[u8]>]) -> bool {
    let names: Vec<&[u8]> = dir.iter().map(AsRef::as_ref).collect();
    latest_home(dir).is_some() || matches!(names.as_slice(), [MODELS, _])
}

/// Says whether `name` in such a directory is derived from its seals.
pub fn is_derived(face: Face, name: &[u8]) -> bool {
    name == LATEST_LINK || (face == Face::Resumable && name == LATEST_FILE)
}

/// Reads what someone wants LATEST or latest to say, as the name of a step.
pub fn latest_wish(content: &[u8]) -> Option<Step> {
    let text = std::str::from_utf8(content).ok()?;
    Step::from_dir_name(text.strip_suffix('\n').unwrap_or(text))
}

/// Says whether a file belongs to the portable face: everything but what only resuming needs.
pub fn is_portable(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let resume_only =
        ["MANIFEST.json", "manifest.json", "trainer_state.json", "scheduler.pt", "training_args.bin"];
    !(resume_only.contains(&name) || name.starts_with("optimizer") || name.starts_with("rng_state"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Option<SealTarget> {
        seal_target(&path.split('/').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn only_final_names_seal() {
        assert_eq!(target("runs/a/ckpt/step-000500"), Some(SealTarget::resumable("a", Step(500))));
        assert_eq!(
            target("checkpoints/odd name/step-000001"),
            Some(SealTarget::portable("odd name", Step(1)))
        );
        assert_eq!(target("models/m/v1.0"), Some(SealTarget::release("m", "v1.0")));
        for plain in [
            "runs/a/ckpt/step-000500.tmp",
            "runs/a/ckpt/step-500",
            "runs/a/ckpt/.step-000500",
            "runs/-a/ckpt/step-000500",
            "runs/a/step-000500",
            "runs/a/ckpt/step-000500/x",
            "checkpoints/step-000001",
            "models/m/.v1",
            "models/m/v1.tmp",
            "models/m",
        ] {
            assert_eq!(target(plain), None, "{plain}");
        }
    }

    #[test]
    fn targets_spell_their_own_path() {
        for path in ["runs/a/ckpt/step-1000000", "checkpoints/b/step-000001", "models/m/v1"] {
            let names = target(path).unwrap().path();
            assert_eq!(names.join(&b'/'), path.as_bytes());
        }
    }
}
