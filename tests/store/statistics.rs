use tinyllm::stats::{RunKind, Statistics};

use crate::support::{Bench, Model};

fn statistics(bench: &Bench) -> Statistics {
    bench.store.statistics().unwrap()
}

#[test]
fn the_same_model_twice_is_stored_once() {
    let bench = Bench::new();
    let model = Model::small(1);
    let added = bench.add("a", 1, &model);
    let before = statistics(&bench);
    bench.add("a", 2, &model);
    bench.add("b", 1, &model);
    let after = statistics(&bench);
    let grown = after.disk.packs_bytes - before.disk.packs_bytes;
    assert!(grown <= added.logical_bytes / 100, "{grown} of {} bytes", added.logical_bytes);
    assert!(after.logical_bytes > 3 * added.logical_bytes);
    assert!(after.runs.iter().all(|run| run.unique_bytes < 64 << 10), "{:?}", after.runs);
}

#[test]
fn a_changed_tensor_adds_itself_and_at_most_one_percent() {
    let bench = Bench::new();
    let mut model = Model::new(1, 10, 4 << 20);
    bench.add("a", 1, &model);
    // The log of recent commits is bounded and emptied by itself, but not at a known time.
    let settled = |bench: &Bench| {
        bench.store.catalog().checkpoint_wal().unwrap();
        statistics(bench)
    };
    let before = settled(&bench);
    model.change("layer.4", 77);
    bench.add("a", 2, &model);
    let after = settled(&bench);
    let (tensor, grown) = (4 << 20, after.disk.total_bytes - before.disk.total_bytes);
    assert!(grown >= tensor && grown <= tensor + tensor / 100, "{grown} bytes");
    let held = after.runs[0].records[1].unique_bytes;
    assert!(held >= tensor && held <= tensor + tensor / 100, "{held} bytes");
}

#[test]
fn bytes_belong_to_a_record_a_run_or_everyone() {
    let bench = Bench::new();
    let (mut ours, alone) = (Model::new(1, 4, 1 << 20), Model::new(9, 4, 1 << 20));
    bench.add("a", 1, &ours);
    ours.change("layer.0", 50);
    bench.add("a", 2, &ours);
    bench.add("b", 1, &alone);
    let all = statistics(&bench);
    assert_eq!(all.checkpoints, 6, "both faces of each");
    assert_eq!(all.plain.files, 2, "LATEST of each run");
    let [a, b] = all.runs.as_slice() else { panic!("{:?}", all.runs) };
    assert_eq!((a.run.as_str(), a.kind, a.records.len()), ("a", RunKind::Run, 2));
    let near = |bytes: u64, mib: u64| bytes >= mib << 20 && bytes < (mib << 20) + 20_000;
    assert!(near(a.records[0].unique_bytes, 1) && near(a.records[1].unique_bytes, 1), "{a:?}");
    // Its own tensors twice, once changed: 5 MiB, and one optimizer of 2 MiB.
    assert!(near(a.unique_bytes, 7), "{a:?}");
    assert!(near(b.records[0].unique_bytes, 6) && near(b.unique_bytes, 6), "{b:?}");
    assert!(near(a.records[0].logical_bytes, 6), "the fuller face: {a:?}");
    assert_eq!(a.records[0].faces.len(), 2);
    assert!(near(all.shared_bytes, 5), "{}", all.shared_bytes);
    let content = all.unique_bytes + all.shared_bytes;
    assert!(all.disk.packs_bytes >= content && all.disk.packs_bytes < content + (1 << 20));

    let (record, files) = bench.store.file_statistics(&bench.store.select("a/2").unwrap()).unwrap();
    assert_eq!(record, a.records[1]);
    let model = files.iter().find(|file| file.path == "model.safetensors").unwrap();
    assert!(near(model.unique_bytes, 1) && near(model.size_bytes, 4), "{model:?}");
    assert_eq!(files.iter().find(|file| file.path == "optimizer.safetensors").unwrap().unique_bytes, 0);
}

#[test]
fn disk_usage_is_what_du_says() {
    let bench = Bench::new();
    bench.add("a", 1, &Model::small(1));
    let output = std::process::Command::new("du").arg("-sB1").arg(bench.store.layout().root()).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let du: u64 = text.split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!(statistics(&bench).disk.total_bytes, du);
}
