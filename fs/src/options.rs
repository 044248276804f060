//! The mount options of `-o`.

use std::time::Duration;

/// What `-o` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    pub read_only: bool,
    /// None: where the kernel and the user's rights allow it.
    pub passthrough: bool,
    /// None: yes for root, no for others.
    pub allow_other: Option<bool>,
    pub nonempty: bool,
    pub settle_after: Duration,
    pub collect_after: Duration,
    pub read_ahead_kib: u32,
    pub threads: usize,
    /// Flags handed to the kernel as they are.
    pub kernel: Vec<KernelFlag>,
}

/// Flags that mean the same on every filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelFlag {
    Dev,
    NoDev,
    Suid,
    NoSuid,
    Exec,
    NoExec,
    Sync,
    DirSync,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            passthrough: true,
            allow_other: None,
            nonempty: false,
            settle_after: Duration::from_secs(60),
            collect_after: Duration::from_secs(60),
            read_ahead_kib: 4096,
            threads: 4,
            kernel: vec![],
        }
    }
}

/// Options that mount(8) and fstab know and that mean nothing here.
const IGNORED: &[&str] = &[
    "rw",
    "async",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nolazytime",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "group",
    "owner",
    "defaults",
    "_netdev",
    "nofail",
    "default_permissions",
    "silent",
    "loud",
];

impl MountOptions {
    /// Reads comma-separated options; later ones win. The error is a sentence for the user.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut options = Self::default();
        for option in lists.into_iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            options.set(option)?;
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("passthrough", Some("yes")) => self.passthrough = true,
            ("passthrough", Some("no")) => self.passthrough = false,
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("nonempty", None) => self.nonempty = true,
            ("settle_after", Some(seconds)) => {
                self.settle_after = Duration::from_secs(number(option, seconds, 0, 1 << 30)?);
            }
            ("gc_after", Some(seconds)) => {
                self.collect_after = Duration::from_secs(number(option, seconds, 0, 1 << 30)?);
            }
            ("read_ahead", Some(kib)) => {
                self.read_ahead_kib = u32::try_from(number(option, kib, 4, 1 << 20)?).expect("checked range");
            }
            ("threads", Some(count)) => {
                self.threads = usize::try_from(number(option, count, 2, 64)?).expect("checked range");
            }
            _ => match kernel_flag(option) {
                Some(flag) => self.kernel.push(flag),
                None if means_nothing(option) => {}
                None => return Err(format!("unknown mount option {option:?}; see mount-tinyllm --help")),
            },
        }
        Ok(())
    }
}

/// Says whether an option is for mount(8), systemd or the kernel's bookkeeping alone.
pub fn means_nothing(option: &str) -> bool {
    IGNORED.contains(&option) || option.starts_with("x-") || option.starts_with("comment=")
}

fn number(option: &str, text: &str, least: u64, most: u64) -> Result<u64, String> {
    let parsed = text.parse().ok().filter(|value| (least..=most).contains(value));
    parsed.ok_or_else(|| format!("mount option {option:?}: wants a number from {least} to {most}"))
}

fn kernel_flag(option: &str) -> Option<KernelFlag> {
    Some(match option {
        "dev" => KernelFlag::Dev,
        "nodev" => KernelFlag::NoDev,
        "suid" => KernelFlag::Suid,
        "nosuid" => KernelFlag::NoSuid,
        "exec" => KernelFlag::Exec,
        "noexec" => KernelFlag::NoExec,
        "sync" => KernelFlag::Sync,
        "dirsync" => KernelFlag::DirSync,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_unknown_ones_refused() {
        let options =
            MountOptions::parse(["ro,passthrough=no", "noatime,settle_after=5,x-systemd.automount"]).unwrap();
        assert!(options.read_only && !options.passthrough);
        assert_eq!(options.settle_after, Duration::from_secs(5));
        for bad in ["sealed", "passthrough", "passthrough=maybe", "threads=0", "read_ahead=x"] {
            assert!(MountOptions::parse([bad]).is_err(), "{bad}");
        }
    }
}
