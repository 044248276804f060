//! Plain files behave as on any POSIX filesystem: contents, holes, mappings, names, attributes.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags, fallocate, renameat_with};
use rustix::io::Errno;
use tinyllm_system_tests::checkpoint::noise;
use tinyllm_system_tests::{Mount, assert_errno, both_modes, listing, text_xattr};

const MIB: usize = 1 << 20;

fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options
}

/// Reads a file and fails with a short message when it differs.
#[track_caller]
fn assert_content(path: &Path, wanted: &[u8]) {
    let found = fs::read(path).unwrap();
    assert_eq!(found.len(), wanted.len(), "{}: length", path.display());
    let differing = found.iter().zip(wanted).position(|(a, b)| a != b);
    assert_eq!(differing, None, "{}: first differing byte", path.display());
}

#[test]
fn writes_in_any_order_are_read_back() {
    both_modes(|mount| {
        let path = mount.join("file");
        let content = noise(1, 3 * MIB + 17);
        let file = read_write().open(&path).unwrap();
        let pieces: Vec<usize> = (0..content.len()).step_by(100_003).collect();
        for &at in pieces.iter().rev() {
            let end = (at + 100_003).min(content.len());
            file.write_all_at(&content[at..end], at as u64).unwrap();
        }
        assert_content(&path, &content);
        drop(file);
        assert_content(&path, &content);
        let mut wanted = content;
        let mut file = read_write().open(&path).unwrap();
        file.write_all_at(b"patched", 1_000_000).unwrap();
        wanted[1_000_000..1_000_007].copy_from_slice(b"patched");
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"tail").unwrap();
        wanted.extend_from_slice(b"tail");
        drop(file);
        assert_content(&path, &wanted);
        mount.remount();
        assert_content(&path, &wanted);
    });
}

#[test]
fn appending_never_overwrites() {
    both_modes(|mount| {
        let path = mount.join("log");
        let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let (mut one, mut two) = (open(), open());
        let mut wanted = Vec::new();
        for round in 0..200 {
            let line = format!("line {round}\n");
            let file = if round % 2 == 0 { &mut one } else { &mut two };
            file.write_all(line.as_bytes()).unwrap();
            wanted.extend_from_slice(line.as_bytes());
        }
        assert_content(&path, &wanted);
        assert_eq!(fs::metadata(&path).unwrap().len(), wanted.len() as u64);
    });
}

#[test]
fn truncating_cuts_and_grows_with_zeros() {
    both_modes(|mount| {
        let path = mount.join("file");
        fs::write(&path, noise(2, MIB)).unwrap();
        let file = read_write().open(&path).unwrap();
        file.set_len(1000).unwrap();
        file.set_len(5000).unwrap();
        let wanted = [&noise(2, MIB)[..1000], &[0; 4000]].concat();
        assert_content(&path, &wanted);
        drop(file);
        read_write().open(&path).unwrap().set_len(10).unwrap();
        assert_content(&path, &wanted[..10]);
        File::create(&path).unwrap();
        assert_content(&path, b"");
    });
}

#[test]
fn holes_are_zeros_and_take_no_space() {
    both_modes(|mount| {
        let path = mount.join("sparse");
        let file = read_write().open(&path).unwrap();
        file.write_all_at(b"end", 512 << 20).unwrap();
        file.sync_all().unwrap();
        let stat = file.metadata().unwrap();
        assert_eq!(stat.len(), (512 << 20) + 3);
        assert!(stat.blocks() > 0 && stat.blocks() * 512 < MIB as u64, "{} blocks", stat.blocks());
        let mut middle = [1; 4096];
        file.read_exact_at(&mut middle, 100 << 20).unwrap();
        assert_eq!(middle, [0; 4096]);
        // Without passthrough no holes are shown, which is always right.
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
        let shown = mount.status()["passthrough"] == true;
        assert!(data <= 512 << 20 && (data > 0) == shown, "data at {data}");
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(512 << 20)).unwrap(), stat.len());
        let beyond = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(stat.len()));
        assert_errno("seek past the end", beyond, Errno::NXIO);
    });
}

#[test]
fn data_just_written_is_never_taken_for_a_hole() {
    both_modes(|mount| {
        let path = mount.join("file");
        let writer = read_write().open(&path).unwrap();
        writer.write_all_at(&noise(11, MIB), 0).unwrap();
        // Nothing was synced or closed: whoever copies the file now must still find its data.
        let reader = File::open(&path).unwrap();
        let stat = reader.metadata().unwrap();
        assert!(
            stat.len() == MIB as u64 && stat.blocks() > 0,
            "{} bytes, {} blocks",
            stat.len(),
            stat.blocks()
        );
        assert_eq!(rustix::fs::seek(&reader, rustix::fs::SeekFrom::Data(0)).unwrap(), 0);
        assert_eq!(rustix::fs::seek(&reader, rustix::fs::SeekFrom::Hole(0)).unwrap(), MIB as u64);
        std::fs::copy(&path, mount.join("copy")).unwrap();
        assert_content(&mount.join("copy"), &noise(11, MIB));
    });
}

#[test]
fn fallocate_reserves_and_punches() {
    both_modes(|mount| {
        let path = mount.join("file");
        let file = read_write().open(&path).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, MIB as u64).unwrap();
        assert_eq!(file.metadata().unwrap().len(), MIB as u64);
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4 * MIB as u64).unwrap();
        assert_eq!(file.metadata().unwrap().len(), MIB as u64);
        let mut wanted = noise(3, MIB);
        file.write_all_at(&wanted, 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 100_000, 300_000).unwrap();
        wanted[100_000..400_000].fill(0);
        assert_content(&path, &wanted);
        let zero = FallocateFlags::ZERO_RANGE;
        match fallocate(&file, zero, 0, 10) {
            Ok(()) => wanted[..10].fill(0),
            Err(error) => assert_eq!(error, Errno::OPNOTSUPP),
        }
        assert_content(&path, &wanted);
    });
}

#[test]
fn shared_mappings_and_file_calls_see_each_other() {
    both_modes(|mount| {
        let path = mount.join("file");
        let mut wanted = noise(4, 2 * MIB);
        fs::write(&path, &wanted).unwrap();
        let file = read_write().open(&path).unwrap();
        // SAFETY: only this test changes the file, in this thread.
        let mut mapping = unsafe { memmap2::MmapMut::map_mut(&file).unwrap() };
        assert!(mapping[..] == wanted[..]);
        mapping[5000..5006].copy_from_slice(b"mapped");
        wanted[5000..5006].copy_from_slice(b"mapped");
        mapping.flush().unwrap();
        file.write_all_at(b"written", 70_000).unwrap();
        wanted[70_000..70_007].copy_from_slice(b"written");
        assert_eq!(&mapping[70_000..70_007], b"written");
        assert_content(&path, &wanted);
        drop(file);
        // The mapping lives on without the descriptor.
        mapping[MIB..MIB + 4].copy_from_slice(b"late");
        wanted[MIB..MIB + 4].copy_from_slice(b"late");
        mapping.flush().unwrap();
        drop(mapping);
        assert_content(&path, &wanted);
        mount.remount();
        assert_content(&path, &wanted);
    });
}

#[test]
fn private_mappings_keep_their_changes() {
    both_modes(|mount| {
        let path = mount.join("file");
        let content = noise(5, MIB);
        fs::write(&path, &content).unwrap();
        let file = File::open(&path).unwrap();
        // SAFETY: only this test changes the file, in this thread.
        let mut mapping = unsafe { memmap2::MmapOptions::new().map_copy(&file).unwrap() };
        mapping[100] ^= 0xff;
        assert_content(&path, &content);
        // SAFETY: as above.
        let read_only = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file).unwrap() };
        assert!(read_only[..] == content[..]);
    });
}

#[test]
fn direct_io_works() {
    both_modes(|mount| {
        let path = mount.join("file");
        let content = noise(6, MIB);
        fs::write(&path, &content).unwrap();
        let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap();
        let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(&path).unwrap();
        // O_DIRECT wants aligned memory: a whole-page mapping is.
        let mut pages = memmap2::MmapMut::map_anon(64 << 10).unwrap();
        file.read_exact_at(&mut pages, 128 << 10).unwrap();
        assert!(pages[..] == content[128 << 10..192 << 10]);
        pages.fill(7);
        file.write_all_at(&pages, 0).unwrap();
        drop(file);
        assert_content(&path, &[&[7; 64 << 10], &content[64 << 10..]].concat());
    });
}

#[test]
fn renames_replace_keep_and_exchange() {
    both_modes(|mount| {
        let (a, b) = (mount.join("a"), mount.join("b"));
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        let mut open = File::open(&b).unwrap();
        fs::rename(&a, &b).unwrap();
        assert_content(&b, b"a");
        let mut old = String::new();
        open.read_to_string(&mut old).unwrap();
        assert_eq!(old, "b", "the replaced file lives on while it is open");
        fs::write(&a, "c").unwrap();
        let kept = renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE);
        assert_errno("NOREPLACE", kept, Errno::EXIST);
        renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
        assert_content(&a, b"a");
        assert_content(&b, b"c");
        fs::create_dir_all(mount.join("d/e")).unwrap();
        renameat_with(CWD, &a, CWD, mount.join("d"), RenameFlags::EXCHANGE).unwrap();
        assert!(a.join("e").is_dir());
        assert_content(&mount.join("d"), b"a");
        assert_errno("a directory into itself", fs::rename(&a, a.join("e/x")), Errno::INVAL);
    });
}

#[test]
fn hard_links_share_one_file() {
    both_modes(|mount| {
        let (a, b) = (mount.join("a"), mount.join("sub/b"));
        fs::create_dir(mount.join("sub")).unwrap();
        fs::write(&a, "one").unwrap();
        fs::hard_link(&a, &b).unwrap();
        fs::write(&b, "both").unwrap();
        assert_content(&a, b"both");
        let stat = |path: &Path| fs::metadata(path).unwrap();
        assert_eq!((stat(&a).ino(), stat(&a).nlink()), (stat(&b).ino(), 2));
        fs::remove_file(&a).unwrap();
        assert_eq!(stat(&b).nlink(), 1);
        assert_content(&b, b"both");
        assert_errno("link onto a name", fs::hard_link(&b, &b), Errno::EXIST);
        assert_errno("link a directory", fs::hard_link(mount.join("sub"), mount.join("x")), Errno::PERM);
    });
}

#[test]
fn a_hard_link_to_a_name_that_came_back_can_be_replaced() {
    both_modes(|mount| {
        let at = |name: &str| mount.join(name);
        File::create(at("f1")).unwrap();
        fs::hard_link(at("f1"), at("l")).unwrap();
        fs::remove_file(at("l")).unwrap();
        File::create(at("f2")).unwrap();
        fs::hard_link(at("f1"), at("l")).unwrap();
        fs::rename(at("f2"), at("l")).unwrap();
        assert_eq!(fs::metadata(at("f1")).unwrap().nlink(), 1);
    });
}

#[test]
fn symbolic_links_say_what_they_were_given() {
    both_modes(|mount| {
        let link = mount.join("link");
        let long = "x/".repeat(1500);
        for target in ["file", "../up", "/absolute", "dangling", &long] {
            symlink(target, &link).unwrap();
            assert_eq!(fs::read_link(&link).unwrap().as_os_str(), target);
            assert_eq!(fs::symlink_metadata(&link).unwrap().len(), target.len() as u64);
            fs::remove_file(&link).unwrap();
        }
        fs::write(mount.join("file"), "x").unwrap();
        symlink("file", &link).unwrap();
        assert_content(&link, b"x");
        tinyllm_system_tests::succeeds(&mount.path(), "touch -h -d @1000000000.5 $M/link");
        let stat = fs::symlink_metadata(&link).unwrap();
        assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_000_000_000, 500_000_000));
        assert!(fs::metadata(&link).unwrap().mtime() > 1_000_000_000);
    });
}

#[test]
fn a_removed_file_lives_while_it_is_open_and_leaves_no_name() {
    both_modes(|mount| {
        let dir = mount.join("dir");
        fs::create_dir(&dir).unwrap();
        let file = read_write().open(dir.join("file")).unwrap();
        file.write_all_at(&noise(7, MIB), 0).unwrap();
        fs::remove_file(dir.join("file")).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "no hidden name stays");
        fs::remove_dir(&dir).unwrap();
        file.write_all_at(b"more", MIB as u64).unwrap();
        let mut bytes = vec![0; MIB + 4];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..MIB] == noise(7, MIB) && &bytes[MIB..] == b"more");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.sync_all().unwrap();
    });
}

#[test]
fn times_have_nanoseconds_and_last() {
    both_modes(|mount| {
        let (file, dir) = (mount.join("file"), mount.join("dir"));
        fs::write(&file, "x").unwrap();
        fs::create_dir(&dir).unwrap();
        let accessed = UNIX_EPOCH + Duration::new(1_000_000_001, 123_456_789);
        let modified = UNIX_EPOCH + Duration::new(1_700_000_000, 987_654_321);
        let times = FileTimes::new().set_accessed(accessed).set_modified(modified);
        for path in [&file, &dir] {
            File::open(path).unwrap().set_times(times).unwrap();
        }
        let check = |mount: &Mount| {
            for path in [mount.join("file"), mount.join("dir")] {
                let stat = fs::metadata(&path).unwrap();
                assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_700_000_000, 987_654_321), "{path:?}");
                assert_eq!((stat.atime(), stat.atime_nsec()), (1_000_000_001, 123_456_789), "{path:?}");
            }
        };
        check(mount);
        mount.remount();
        check(mount);
        let before = fs::metadata(&file).unwrap().ctime();
        fs::write(&file, "y").unwrap();
        let after = fs::metadata(&file).unwrap();
        assert!(after.mtime() > 1_700_000_000 && after.ctime() >= before, "writing moves the times");
    });
}

#[test]
fn user_attributes_are_kept() {
    both_modes(|mount| {
        let path = mount.join("file");
        fs::write(&path, "x").unwrap();
        let set = |value: &[u8], flags| rustix::fs::setxattr(&path, "user.note", value, flags);
        assert_errno("replace none", set(b"0", XattrFlags::REPLACE), Errno::NODATA);
        set(b"1", XattrFlags::CREATE).unwrap();
        assert_errno("create again", set(b"2", XattrFlags::CREATE), Errno::EXIST);
        set(b"two", XattrFlags::REPLACE).unwrap();
        mount.remount();
        assert_eq!(text_xattr(&path, "user.note").as_deref(), Some("two"));
        let mut names = [0; 100];
        let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
        assert_eq!(&names[..len], b"user.note\0");
        assert_errno(
            "too small a buffer",
            rustix::fs::getxattr(&path, "user.note", &mut [0; 2][..]),
            Errno::RANGE,
        );
        rustix::fs::removexattr(&path, "user.note").unwrap();
        assert_eq!(text_xattr(&path, "user.note"), None);
    });
}

#[test]
fn inode_numbers_last_and_equal_files_differ() {
    both_modes(|mount| {
        let content = noise(8, 100_000);
        fs::write(mount.join("a"), &content).unwrap();
        fs::write(mount.join("b"), &content).unwrap();
        let number = |mount: &Mount, name| fs::metadata(mount.join(name)).unwrap().ino();
        let before = (number(mount, "a"), number(mount, "b"));
        assert_ne!(before.0, before.1);
        mount.remount();
        assert_eq!((number(mount, "a"), number(mount, "b")), before);
        fs::rename(mount.join("a"), mount.join("c")).unwrap();
        assert_eq!(number(mount, "c"), before.0);
    });
}

#[test]
fn directories_hold_many_entries_and_long_names() {
    both_modes(|mount| {
        let dir = mount.join("dir");
        fs::create_dir(&dir).unwrap();
        for number in 0..5000 {
            File::create(dir.join(format!("entry {number}"))).unwrap();
        }
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let before = names();
        assert_eq!(before.len(), 5000);
        let unique: std::collections::BTreeSet<_> = before.iter().collect();
        assert_eq!(unique.len(), 5000);
        mount.remount();
        assert_eq!(names(), before);
        fs::remove_dir_all(&dir).unwrap();
        let longest = "é".repeat(127) + "x";
        fs::write(mount.join(&longest), "x").unwrap();
        assert_content(&mount.join(&longest), b"x");
        let longer = fs::write(mount.join(longest + "x"), "x");
        assert_errno("256 bytes", longer, Errno::NAMETOOLONG);
    });
}

#[test]
fn removing_while_listing_removes_everything() {
    both_modes(|mount| {
        let dir = mount.join("dir");
        fs::create_dir(&dir).unwrap();
        for number in 0..1000 {
            File::create(dir.join(number.to_string())).unwrap();
        }
        for entry in fs::read_dir(&dir).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        fs::remove_dir(&dir).unwrap();
    });
}

#[test]
fn syncing_works_on_every_kind_of_descriptor() {
    both_modes(|mount| {
        let path = mount.join("file");
        fs::write(&path, "x").unwrap();
        for file in
            [File::open(&path).unwrap(), read_write().open(&path).unwrap(), File::open(mount.path()).unwrap()]
        {
            file.sync_all().unwrap();
            file.sync_data().unwrap();
        }
    });
}

#[test]
fn the_disk_beneath_is_shown() {
    both_modes(|mount| {
        let ours = rustix::fs::statvfs(mount.path()).unwrap();
        let disk = rustix::fs::statvfs(mount.store()).unwrap();
        assert_eq!(ours.f_namemax, 255);
        assert!(ours.f_bavail > 0);
        let total = |stat: &rustix::fs::StatVfs| stat.f_blocks * stat.f_frsize;
        assert_eq!(total(&ours), total(&disk));
    });
}

#[test]
fn everything_survives_a_remount() {
    both_modes(|mount| {
        let dir = mount.join("tree");
        fs::create_dir_all(dir.join("deep/er")).unwrap();
        fs::write(dir.join("small"), "x").unwrap();
        fs::write(dir.join("deep/large"), noise(9, 5 * MIB)).unwrap();
        fs::write(dir.join("empty"), "").unwrap();
        symlink("small", dir.join("link")).unwrap();
        fs::hard_link(dir.join("small"), dir.join("deep/er/same")).unwrap();
        // Without passthrough the kernel shows times of its own until it has forgotten the files.
        mount.remount();
        let before = listing(&dir);
        assert_content(&dir.join("deep/large"), &noise(9, 5 * MIB));
        mount.remount();
        assert_eq!(listing(&dir), before);
        mount.kill();
        mount.mount();
        assert_eq!(listing(&dir), before);
    });
}

#[test]
fn file_types_and_errors_are_those_of_posix() {
    both_modes(|mount| {
        let at = |name: &str| mount.join(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("dir/file"), "x").unwrap();
        fs::create_dir(at("empty")).unwrap();
        assert_errno("a directory onto a full one", fs::rename(at("empty"), at("dir")), Errno::NOTEMPTY);
        assert_errno("a file onto a directory", fs::rename(at("dir/file"), at("empty")), Errno::ISDIR);
        assert_errno("a directory onto a file", fs::rename(at("empty"), at("dir/file")), Errno::NOTDIR);
        fs::rename(at("dir"), at("empty")).unwrap();
        assert_content(&at("empty/file"), b"x");
        assert_errno("remove a full directory", fs::remove_dir(at("empty")), Errno::NOTEMPTY);
        assert_errno("unlink a directory", rustix::fs::unlink(at("empty")), Errno::ISDIR);
        assert_errno("rmdir a file", fs::remove_dir(at("empty/file")), Errno::NOTDIR);
        assert_errno("write a directory", OpenOptions::new().write(true).open(at("empty")), Errno::ISDIR);
        assert_errno("create twice", fs::create_dir(at("empty")), Errno::EXIST);
        assert_errno("no such name", File::open(at("nothing")), Errno::NOENT);
        rustix::fs::mkfifoat(CWD, at("pipe"), rustix::fs::Mode::RUSR).unwrap();
        use std::os::unix::fs::FileTypeExt;
        assert!(fs::metadata(at("pipe")).unwrap().file_type().is_fifo());
    });
}
