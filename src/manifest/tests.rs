use std::fs;

use super::*;

fn sample() -> Manifest {
    let entry = |path: &str, bytes: &[u8]| FileEntry {
        path: path.to_owned(),
        size_bytes: bytes.len() as u64,
        sha256: Sha256Digest::of(bytes),
    };
    Manifest {
        subject: Subject::Checkpoint { run_id: "r-1".parse().unwrap(), step: Step(500) },
        base_model: None,
        parent: None,
        created_at: "2025-03-01T12:00:00Z".to_owned(),
        files: vec![entry("model.safetensors", b"weights"), entry("config.json", b"{}")],
    }
}

#[test]
fn bytes_are_stable_sorted_and_parse_back() {
    let mut manifest = sample();
    let bytes = manifest.to_bytes();
    assert!(bytes.ends_with(b"}\n"));
    manifest.files.reverse();
    assert_eq!(manifest.to_bytes(), bytes, "the order of files does not reach the bytes");
    assert_eq!(Manifest::parse(&bytes).unwrap(), manifest);
}

#[test]
fn a_path_listed_twice_and_a_duplicate_key_are_refused() {
    let mut manifest = sample();
    manifest.files.push(manifest.files[0].clone());
    assert!(matches!(Manifest::parse(&manifest.to_bytes()), Err(ManifestError::Duplicate { .. })));
    let text = String::from_utf8(sample().to_bytes()).unwrap();
    let twice = text.replace("\"step\": 500,", "\"step\": 500, \"step\": 501,");
    assert!(matches!(Manifest::parse(twice.as_bytes()), Err(ManifestError::NotJson(_))));
}

#[test]
fn the_portable_manifest_is_derived_and_its_name_checked() {
    let weights = Sha256Digest::of(b"weights");
    let portable = CheckpointManifest::from_manifest(&sample(), weights).unwrap();
    assert_eq!(portable.name, "r-1:r-1:step-500");
    let bytes = portable.to_bytes();
    assert_eq!(CheckpointManifest::parse(&bytes).unwrap(), portable);
    let lying = String::from_utf8(bytes).unwrap().replace("r-1:r-1:step-500", "r-1:r-1:step-501");
    assert!(matches!(CheckpointManifest::parse(lying.as_bytes()), Err(ManifestError::NameMismatch { .. })));
}

#[test]
fn every_differing_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("model.safetensors"), b"weights").unwrap();
    fs::write(at("config.json"), b"{}").unwrap();
    fs::write(at(MANIFEST_FILE), sample().to_bytes()).unwrap();
    let manifest = Manifest::read(dir.path()).unwrap();
    manifest.check_dir(dir.path()).unwrap();

    fs::write(at("model.safetensors"), b"Weights").unwrap();
    fs::remove_file(at("config.json")).unwrap();
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/extra"), b"").unwrap();
    let Err(ManifestError::Differs { problems, .. }) = manifest.check_dir(dir.path()) else {
        panic!("a damaged directory passes")
    };
    let said: Vec<_> = problems.iter().map(FileProblem::to_string).collect();
    assert_eq!(said[0], "config.json is missing");
    assert!(said[1].starts_with("model.safetensors has SHA-256 "));
    assert_eq!(said[2], "sub/extra is not listed");

    fs::write(at("model.safetensors"), b"short").unwrap();
    let error = manifest.check_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("model.safetensors has 5 bytes, not 7"), "{error}");
    std::os::unix::fs::symlink("model.safetensors", at("config.json")).unwrap();
    let error = manifest.check_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("config.json is not a regular file"), "{error}");
}

#[test]
fn an_absent_manifest_is_missing_not_an_io_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Manifest::read(dir.path()), Err(ManifestError::Missing { .. })));
}
