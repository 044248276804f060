//! The everyday tools, on plain folders of the mount. The numbers are those of docs and reports of what fails on
//! other filesystems of this kind.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use tinyllm_system_tests::checkpoint::{noise, save};
use tinyllm_system_tests::{
    Line, Lines, Mount, both_modes, eventually, listing, output_of, read_text, succeeds,
};

const MIB: usize = 1 << 20;
/// How many processes or threads race in the tests of races.
const RACERS: usize = 8;

/// Makes a small tree of every kind of thing, outside the mount.
fn source(mount: &Mount) -> std::path::PathBuf {
    let dir = mount.outside().join("source");
    fs::create_dir_all(dir.join("deep/er")).unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    fs::write(dir.join("small"), "small\n").unwrap();
    fs::write(dir.join("deep/large"), noise(1, 3 * MIB + 5)).unwrap();
    std::os::unix::fs::symlink("../small", dir.join("deep/link")).unwrap();
    fs::hard_link(dir.join("small"), dir.join("deep/er/same")).unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 40 << 20).unwrap();
    sparse.set_len(64 << 20).unwrap();
    succeeds(
        &dir,
        "chmod 751 $M/small; chmod 700 $M/deep; setfattr -n user.note -v kept $M/small
         find $M -exec touch -h -d @1700000000.123456789 {} +",
    );
    dir
}

#[test]
fn cp_copies_in_out_and_within() {
    both_modes(|mount| {
        let (from, outside) = (source(mount), mount.outside());
        let line = format!(
            "cp -a {} $M/in; cp -a $M/in $M/within; cp -a $M/within {}/out",
            from.display(),
            outside.display()
        );
        succeeds(&mount.path(), &line);
        for copy in [mount.join("in"), mount.join("within"), outside.join("out")] {
            assert_eq!(listing(&copy), listing(&from), "{}", copy.display());
            assert_eq!(fs::metadata(copy.join("small")).unwrap().nlink(), 2);
        }
        assert_eq!(output_of(&mount.path(), "getfattr --only-values -n user.note $M/within/small"), "kept");
        succeeds(&mount.path(), "cp -r $M/in $M/plainly; diff -r $M/in $M/plainly");
    });
}

#[test]
fn rsync_copies_and_finds_nothing_more_to_do() {
    both_modes(|mount| {
        let from = source(mount);
        succeeds(&mount.path(), &format!("rsync -aHX --sparse {}/ $M/to/", from.display()));
        assert_eq!(listing(&mount.join("to")), listing(&from));
        let again = format!("rsync -aHX --sparse --itemize-changes {}/ $M/to/", from.display());
        assert_eq!(output_of(&mount.path(), &again), "");
        fs::write(from.join("deep/large"), noise(2, 3 * MIB)).unwrap();
        succeeds(&from, "touch -d @1700000009.5 $M/deep/large $M/deep");
        succeeds(&mount.path(), &format!("rsync -aHX --inplace {}/ $M/to/", from.display()));
        assert_eq!(listing(&mount.join("to")), listing(&from));
    });
}

#[test]
fn tar_packs_and_unpacks() {
    both_modes(|mount| {
        let from = source(mount);
        let line = format!(
            "tar -C {} --format=posix -cf $M/a.tar . ; mkdir $M/x $M/y; tar -C $M/x -xf $M/a.tar
             tar -C $M/x --format=posix --sparse -czf $M/b.tar . ; tar -C $M/y -xf $M/b.tar",
            from.display()
        );
        succeeds(&mount.path(), &line);
        for copy in ["x", "y"] {
            assert_eq!(listing(&mount.join(copy)), listing(&from), "{copy}");
        }
    });
}

#[test]
fn git_keeps_a_repository() {
    both_modes(|mount| {
        let from = source(mount);
        fs::remove_file(from.join("sparse")).unwrap();
        let line = format!(
            "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
             export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
             cp -r {} $M/r; cd $M/r; git init -q .; git add .; git commit -qm one
             for n in 1 2 3 4 5; do echo $n >>small; git commit -qam $n; test ! -e .git/index.lock; done
             git clone -q --no-local . ../clone; git -C ../clone fsck --strict
             git gc -q; git fsck --strict; git status --porcelain",
            from.display()
        );
        assert_eq!(output_of(&mount.path(), &line), "");
        mount.remount();
        succeeds(
            &mount.path(),
            "git -C $M/r fsck --strict; git -C $M/r checkout -q HEAD~2; tail -n1 $M/r/small | grep -qx 3",
        );
    });
}

/// Runs the same thing in several threads at once and gives their answers.
fn race<T: Send>(act: impl Fn() -> T + Sync) -> Vec<T> {
    let start = Barrier::new(RACERS);
    std::thread::scope(|scope| {
        let racer = || {
            start.wait();
            act()
        };
        let racers: Vec<_> = (0..RACERS).map(|_| scope.spawn(racer)).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    })
}

#[test]
fn of_many_renames_of_one_directory_one_succeeds() {
    both_modes(|mount| {
        for round in 0..20 {
            let (from, to) = (mount.join(format!("tmp-{round}")), mount.join(format!("final-{round}")));
            fs::create_dir(&from).unwrap();
            fs::write(from.join("file"), "x").unwrap();
            let results = race(|| fs::rename(&from, &to));
            let lost = |result: &std::io::Result<()>| {
                result.as_ref().err().and_then(std::io::Error::raw_os_error)
                    == Some(Errno::NOENT.raw_os_error())
            };
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
            assert_eq!(results.iter().filter(|result| lost(result)).count(), RACERS - 1, "{results:?}");
            assert_eq!(read_text(to.join("file")), "x");
        }
    });
}

#[test]
fn many_may_remove_one_tree() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        save(&ckpt, "r", 2);
        fs::create_dir_all(mount.join("plain/deep")).unwrap();
        (0..100).for_each(|number| fs::write(mount.join(format!("plain/deep/{number}")), "x").unwrap());
        for doomed in [mount.join("plain"), ckpt.join("step-000002")] {
            let line = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)";
            let remove =
                || Command::new("/usr/bin/python3").args(["-c", line]).arg(&doomed).status().unwrap();
            assert!(race(remove).iter().all(std::process::ExitStatus::success));
            // Each ignores that another was faster, so together they may leave some.
            fs::remove_dir_all(&doomed)
                .or_else(|e| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
                .unwrap();
            assert!(!doomed.exists());
        }
        assert_eq!(read_text(ckpt.join("LATEST")), "step-000001\n");
        tinyllm_system_tests::checkpoint::assert_complete(&ckpt.join("step-000001"), 1);
    });
}

#[test]
fn a_directory_is_renamed_whole_while_it_is_listed() {
    both_modes(|mount| {
        let (from, to) = (mount.join("from"), mount.join("to"));
        fs::create_dir(&from).unwrap();
        (0..200).for_each(|number| fs::write(from.join(number.to_string()), "x").unwrap());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for dir in [&from, &to] {
                        match fs::read_dir(dir) {
                            Ok(entries) => assert_eq!(entries.count(), 200),
                            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
                        }
                    }
                }
            });
            for _ in 0..50 {
                fs::rename(&from, &to).unwrap();
                fs::rename(&to, &from).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn an_open_file_may_be_renamed_and_written_on() {
    both_modes(|mount| {
        let (tmp, fin) = (mount.join("a.tmp"), mount.join("a"));
        let mut file = File::create(&tmp).unwrap();
        file.write_all(b"first, ").unwrap();
        fs::rename(&tmp, &fin).unwrap();
        file.write_all(b"second").unwrap();
        drop(file);
        assert_eq!(read_text(&fin), "first, second");
    });
}

/// Starts a process that takes a lock and holds it until it is killed.
fn hold_lock(path: &Path, call: &str) -> Child {
    let line = format!(
        "import fcntl, sys, time
f = open(sys.argv[1], 'r+')
fcntl.{call}(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
print('locked', flush=True)
time.sleep(600)"
    );
    let mut holder = Command::new("/usr/bin/python3")
        .args(["-c", &line])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = Lines::of(holder.stdout.take().unwrap());
    assert_eq!(said.next_line(), Line::Said("locked".to_owned()));
    holder
}

#[test]
fn locks_keep_others_out_and_die_with_their_holder() {
    both_modes(|mount| {
        let path = mount.join("lock");
        fs::write(&path, "x").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let try_flock = || rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        let try_fcntl =
            || rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        for call in ["flock", "lockf"] {
            let try_lock = || if call == "flock" { try_flock() } else { try_fcntl() };
            let mut holder = hold_lock(&path, call);
            let refused = try_lock().unwrap_err();
            assert!(matches!(refused, Errno::WOULDBLOCK | Errno::ACCESS), "{call}: {refused}");
            holder.kill().unwrap();
            holder.wait().unwrap();
            try_lock().unwrap();
            rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
            rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
        }
    });
}

#[test]
fn large_sparse_files_keep_every_offset() {
    both_modes(|mount| {
        let line = format!(
            "cd {}; truncate -s 5G s; printf z | dd of=s bs=1 seek=4500000000 conv=notrunc status=none
             cp --sparse=always s $M/s; test $(stat -c %s $M/s) = 5368709120
             test \"$(dd if=$M/s bs=1 skip=4500000000 count=1 status=none)\" = z
             test $(($(stat -c %b $M/s) * 512)) -lt 1000000",
            mount.outside().display()
        );
        succeeds(&mount.path(), &line);
        // The file ends in a hole.
        succeeds(&mount.path(), "printf a >$M/t; truncate -s 300M $M/t");
        mount.remount();
        succeeds(
            &mount.path(),
            "test $(stat -c %s $M/t) = 314572800; tail -c 1 $M/t | cmp - <(printf '\\0')
             tar -C $M -S -cf $M/t.tar t; mkdir $M/x; tar -C $M/x -xf $M/t.tar; cmp $M/t $M/x/t",
        );
    });
}

#[test]
fn the_blocks_shown_are_plausible() {
    both_modes(|mount| {
        fs::write(mount.join("f"), noise(3, 2 * MIB)).unwrap();
        let blocks = || fs::metadata(mount.join("f")).unwrap().blocks();
        assert!(blocks() > 0);
        File::open(mount.join("f")).unwrap().sync_all().unwrap();
        eventually("the blocks are known", || {
            (2 * MIB as u64 / 512..=2 * MIB as u64 / 512 + 64).contains(&blocks())
        });
        succeeds(
            &mount.path(),
            "cp --sparse=auto $M/f $M/g; cmp $M/f $M/g; df -Pk $M >/dev/null; stat -f $M >/dev/null",
        );
    });
}

#[test]
fn a_log_can_be_followed() {
    both_modes(|mount| {
        let log = mount.join("log");
        fs::write(&log, "one\n").unwrap();
        let mut tail = Command::new("tail")
            .args(["-n+1", "-F"])
            .arg(&log)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = Lines::of(tail.stdout.take().unwrap());
        let hear = |line: &str| assert_eq!(said.next_line(), Line::Said(line.to_owned()));
        hear("one");
        OpenOptions::new().append(true).open(&log).unwrap().write_all(b"two\n").unwrap();
        hear("two");
        fs::write(mount.join("log.tmp"), "three\n").unwrap();
        fs::rename(mount.join("log.tmp"), &log).unwrap();
        hear("three");
        tail.kill().unwrap();
        tail.wait().unwrap();
    });
}
