use tinyllm::store::Store;

use crate::support::{Bench, Model};

/// Reads LATEST and the target of latest.
fn latest(store: &Store, run: &str) -> (Option<String>, Option<String>) {
    store
        .read(|txn| {
            let path = ["runs", run, "ckpt", "LATEST"].map(str::as_bytes);
            let text = txn.resolve(path)?;
            let path = ["checkpoints", run, "latest"].map(str::as_bytes);
            let link = txn.resolve(path)?.map(|inode| txn.symlink_target(inode.ino)).transpose()?;
            Ok((text, link.map(|target| String::from_utf8(target).unwrap())))
        })
        .map(|(text, link)| {
            let text = text.map(|inode| String::from_utf8(store.read_whole(&inode, 100).unwrap()).unwrap());
            (text, link)
        })
        .unwrap()
}

fn remove(store: &Store, checkpoint: &str) {
    let checkpoint = store.select(checkpoint).unwrap();
    let aftermath = store.remove_sealed(&checkpoint).unwrap();
    for ino in aftermath.orphans {
        store.reclaim(ino).unwrap();
    }
}

#[test]
fn latest_follows_the_order_of_commits() {
    let bench = Bench::new();
    let newest = |step: &str| (Some(format!("{step}\n")), Some(step.to_owned()));
    for (step, name) in [(999_999, "step-999999"), (1_000_000, "step-1000000"), (5, "step-000005")] {
        bench.add("a", step, &Model::new(step, 2, 100_000));
        assert_eq!(latest(&bench.store, "a"), newest(name));
    }
    remove(&bench.store, "runs/a/ckpt/step-000005");
    assert_eq!(latest(&bench.store, "a"), (newest("step-1000000").0, newest("step-000005").1));
    remove(&bench.store, "checkpoints/a/step-000005");
    assert_eq!(latest(&bench.store, "a"), newest("step-1000000"));
}

#[test]
fn removal_and_collection_give_the_bytes_back() {
    let bench = Bench::new();
    let store = &bench.store;
    bench.add("a", 1, &Model::small(1));
    let one = store.statistics().unwrap().disk;
    bench.add("a", 2, &Model::small(2));
    let both = store.statistics().unwrap();
    assert!(both.disk.packs_bytes > one.packs_bytes + (7 << 20));

    let holds = both.runs[0].records[1].unique_bytes;
    remove(store, "runs/a/ckpt/step-2");
    let collected = store.collect(|_| false).unwrap();
    assert!(collected.freed_bytes >= 5 << 19, "the optimizer's half: {collected:?}");
    remove(store, "checkpoints/a/step-2");
    store.collect(|_| false).unwrap();
    let after = store.statistics().unwrap().disk;
    // Directories stay, one for each two digits that a pack's name ever began with.
    let slack = 64 << 10;
    assert!(after.packs_bytes <= one.packs_bytes + slack, "{one:?} {after:?}");
    assert!(both.disk.packs_bytes - after.packs_bytes + slack >= holds);
    assert!(store.verify_all(&tinyllm::progress::unwatched).unwrap().is_sound());
}
