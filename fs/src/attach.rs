//! Mounting itself: by the system call where permitted, else through the set-user-id helper.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use fuser::{Config, Filesystem, MountOption, Session, SessionACL};
use rustix::mount::MountFlags;
use tinyllm::mounts::FS_TYPE;

use crate::mountpoint;
use crate::options::{KernelFlag, MountOptions};

/// How a mount is made.
#[derive(Debug, Clone, Copy)]
pub struct Attachment<'a> {
    /// What /proc/mounts shows as the source.
    pub store: &'a Path,
    pub mountpoint: &'a Path,
    pub options: &'a MountOptions,
    pub allow_other: bool,
}

impl Attachment<'_> {
    /// Mounts and shakes hands with the kernel; after that the mount answers.
    pub fn attach<F: Filesystem>(&self, filesystem: F, privileged: bool) -> io::Result<Session<F>> {
        let mut config = Config::default();
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.options.threads);
        config.clone_fd = true;
        if !privileged {
            config.mount_options = self.helper_options();
            return Session::new(filesystem, self.mountpoint, &config);
        }
        let device: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/fuse")?.into();
        self.mount(&device)?;
        let acl = config.acl;
        Session::from_fd(filesystem, device, acl, config).inspect_err(|_| {
            // The mount without a daemon would be a dead one. That it stays is said by the next start.
            let _ = mountpoint::detach(self.mountpoint);
        })
    }

    fn mount(&self, device: &OwnedFd) -> io::Result<()> {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let mut data = format!(
            "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions",
            device.as_raw_fd()
        );
        if self.allow_other {
            data.push_str(",allow_other");
        }
        let data = std::ffi::CString::new(data).expect("no NUL in numbers and words");
        Ok(rustix::mount::mount(self.store, self.mountpoint, FS_TYPE, self.kernel_flags(), data.as_c_str())?)
    }

    /// Like other FUSE filesystems, without devices and set-user-id programs unless they are asked for.
    fn kernel_flags(&self) -> MountFlags {
        let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
        flags.set(MountFlags::RDONLY, self.options.read_only);
        for flag in &self.options.kernel {
            match flag {
                KernelFlag::Dev => flags.remove(MountFlags::NODEV),
                KernelFlag::NoDev => flags.insert(MountFlags::NODEV),
                KernelFlag::Suid => flags.remove(MountFlags::NOSUID),
                KernelFlag::NoSuid => flags.insert(MountFlags::NOSUID),
                KernelFlag::Exec => flags.remove(MountFlags::NOEXEC),
                KernelFlag::NoExec => flags.insert(MountFlags::NOEXEC),
                KernelFlag::Sync => flags.insert(MountFlags::SYNCHRONOUS),
                KernelFlag::DirSync => flags.insert(MountFlags::DIRSYNC),
            }
        }
        flags
    }

    fn helper_options(&self) -> Vec<MountOption> {
        let mut options = vec![
            MountOption::FSName(self.store.display().to_string()),
            MountOption::Subtype("tinyllm".to_owned()),
            MountOption::DefaultPermissions,
            if self.options.read_only { MountOption::RO } else { MountOption::RW },
        ];
        options.extend(self.options.kernel.iter().map(|flag| match flag {
            KernelFlag::Dev => MountOption::Dev,
            KernelFlag::NoDev => MountOption::NoDev,
            KernelFlag::Suid => MountOption::Suid,
            KernelFlag::NoSuid => MountOption::NoSuid,
            KernelFlag::Exec => MountOption::Exec,
            KernelFlag::NoExec => MountOption::NoExec,
            KernelFlag::Sync => MountOption::Sync,
            KernelFlag::DirSync => MountOption::DirSync,
        }));
        options
    }
}
