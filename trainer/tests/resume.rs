//! Killing, resuming and refusing, through the real binary.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::{TinyRun, assert_same_state, names};
use tinyllm::manifest::Manifest;
use tinyllm_trainer::pcg32::Pcg32;

/// Kills the trainer at random moments until it is through, then compares it with a run that was left alone.
#[test]
fn a_run_killed_at_random_moments_ends_bitwise_as_an_uninterrupted_one() {
    let run = TinyRun::new(json!({}));
    let started = Instant::now();
    run.succeed("whole", &[]);
    let whole_ms = u32::try_from(started.elapsed().as_millis()).unwrap();

    let mut moments = Pcg32::new(1, 1);
    let mut kills = 0;
    loop {
        let resume: &[&str] = if names_or_none(&run).is_empty() { &[] } else { &["--resume"] };
        let mut child = run.spawn("killed", resume);
        std::thread::sleep(Duration::from_millis(u64::from(moments.below(whole_ms / 2))));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        for name in names_or_none(&run) {
            let dir = run.ckpt_dir("killed").join(name);
            Manifest::read(&dir).unwrap().check_dir(&dir).unwrap();
        }
        if kills == 12 {
            // Progress is not certain when every life is short: the last one lives to the end.
            run.succeed("killed", &["--resume"]);
            break;
        }
    }
    assert!(kills > 0, "the run ended before the first kill");
    assert_same_state(&run.step_dir("whole", 40), &run.step_dir("killed", 40));
    let loss = |artifacts| run.events(artifacts, "step").last().unwrap()["loss"].clone();
    assert_eq!(loss("whole"), loss("killed"));
}

/// The complete steps of the killed run.
fn names_or_none(run: &TinyRun) -> Vec<String> {
    let dir = run.ckpt_dir("killed");
    if !dir.exists() {
        return Vec::new();
    }
    let complete = |name: &String| name.starts_with("step-") && !name.ends_with(".tmp");
    names(&dir).into_iter().filter(complete).collect()
}

#[test]
fn latest_names_the_newest_step_and_old_ones_are_removed() {
    let run = TinyRun::new(json!({"steps": 20}));
    run.succeed("a", &[]);
    assert_eq!(names(&run.ckpt_dir("a")), ["LATEST", "step-000015", "step-000020"]);
    assert_eq!(fs::read_to_string(run.ckpt_dir("a").join("LATEST")).unwrap(), "step-000020\n");
    let saved: Vec<_> = run.events("a", "ckpt").iter().map(|event| event["step"].clone()).collect();
    assert_eq!(saved, [5, 10, 15, 20]);
    let manifest = Manifest::read(&run.step_dir("a", 20)).unwrap();
    assert_eq!(manifest.parent.as_deref(), Some("tiny:tiny:step-15"));
    let listed: Vec<_> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(listed, ["config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json"]);
}

#[test]
fn a_damaged_newest_checkpoint_is_skipped_with_its_reason() {
    let run = TinyRun::new(json!({"steps": 20}));
    run.succeed("a", &[]);
    let model = run.step_dir("a", 20).join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    let intact = bytes.clone();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&model, bytes).unwrap();

    let said = run.succeed("a", &["--resume"]);
    assert!(said.contains("skipped runs/tiny/ckpt/step-000020: "), "{said}");
    assert!(said.contains("model.safetensors has SHA-256"), "{said}");
    assert!(said.contains("resuming from runs/tiny/ckpt/step-000015"), "{said}");
    assert_eq!(fs::read(&model).unwrap(), intact, "step 20 was trained and saved again");
    assert_eq!(run.events("a", "skip").len(), 1);

    fs::remove_file(run.step_dir("a", 15).join("MANIFEST.json")).unwrap();
    fs::write(run.step_dir("a", 20).join("extra"), "").unwrap();
    let said = run.fail("a", &["--resume"]);
    assert!(said.contains("nothing to resume") && said.contains("MANIFEST.json is missing"), "{said}");
    assert!(said.contains("extra is not listed"), "{said}");
}

#[test]
fn an_explicit_older_step_replaces_the_abandoned_ones() {
    let run = TinyRun::new(json!({"steps": 20, "keep_ckpts": 4}));
    run.succeed("whole", &[]);
    run.succeed("a", &[]);
    let asked = run.step_dir("a", 5);
    run.succeed("a", &["--resume", asked.to_str().unwrap()]);
    assert_same_state(&run.step_dir("whole", 20), &run.step_dir("a", 20));
    assert_eq!(run.events("a", "ckpt").len(), 4 + 3);
}

#[test]
fn what_must_not_start_is_refused_with_advice() {
    let mut run = TinyRun::new(json!({"steps": 5}));
    let said = run.fail("a", &["--resume"]);
    assert!(said.contains("nothing to resume") && said.contains("runs/tiny/ckpt"), "{said}");
    run.succeed("a", &[]);
    assert!(run.fail("a", &[]).contains("--resume"));
    assert!(run.fail("a", &["--resume", "elsewhere"]).contains("step-000500"));

    run.set("seed", json!(7));
    assert!(run.fail("a", &["--resume"]).contains("--accept-changed-spec"));
    run.set("steps", json!(6));
    run.succeed("a", &["--resume", "--accept-changed-spec"]);
    assert!(run.step_dir("a", 6).exists());

    fs::write(run.dir.path().join("text.txt"), "another text, long enough for one window").unwrap();
    assert!(run.fail("a", &["--resume"]).contains("text.txt changed"));
    run.set("epochs", json!(3));
    assert!(run.fail("b", &[]).contains("train-spec"));
}

#[test]
fn a_signal_ends_the_run_after_a_save_and_a_second_trainer_is_refused() {
    let run = TinyRun::new(json!({"steps": 1_000_000, "save_every": 1_000_000}));
    let mut child = run.spawn("a", &["--quiet"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while run.events("a", "step").is_empty() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(run.fail("a", &["--resume"]).contains("another trainer holds"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let end = run.events("a", "end");
    assert_eq!(end[0]["reason"], "signal");
    let step = end[0]["step"].as_u64().unwrap();
    let dir = run.step_dir("a", step);
    Manifest::read(&dir).unwrap().check_dir(&dir).unwrap();
}

#[test]
fn a_trained_tokenizer_is_saved_and_used_again() {
    let changes = json!({"steps": 20, "tokenizer": {"vocab_size": 300},
        "model": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "tie_word_embeddings": false, "tl_tokenizer": "file"},
        "generation_config": {"do_sample": true, "temperature": 0.8}});
    let run = TinyRun::new(changes);
    run.succeed("whole", &[]);
    let files = names(&run.step_dir("whole", 20));
    assert!(
        files.contains(&"tokenizer.json".to_owned()) && files.contains(&"generation_config.json".to_owned())
    );
    let config = fs::read_to_string(run.step_dir("whole", 20).join("config.json")).unwrap();
    assert!(config.contains("\"vocab_size\": 300"), "{config}");

    run.succeed("a", &[]);
    fs::remove_dir_all(run.step_dir("a", 20)).unwrap();
    let said = run.succeed("a", &["--resume"]);
    assert!(said.contains("step-000020: it does not exist"), "{said}");
    assert_same_state(&run.step_dir("whole", 20), &run.step_dir("a", 20));
}

#[test]
fn training_learns() {
    let run = TinyRun::new(json!({"steps": 120, "save_every": 120}));
    run.succeed("a", &["--quiet"]);
    let losses: Vec<f64> =
        run.events("a", "step").iter().map(|event| event["loss"].as_f64().unwrap()).collect();
    assert!((losses[0] - 256f64.ln()).abs() < 0.2, "an untrained model guesses evenly: {}", losses[0]);
    assert!(losses[119] < losses[0] - 2.0, "{} to {}", losses[0], losses[119]);
}
