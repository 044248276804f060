//! Commands that only look: status, ls, show.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use tinyllm::error::StoreError;
use tinyllm::stats::{FileStatistics, RecordStatistics, RunKind, RunStatistics, Statistics};

use crate::failure::Failure;
use crate::output::{Output, human};
use crate::reach::Reach;
use crate::table::{Align, table};

#[derive(Serialize)]
struct Status {
    store: PathBuf,
    uuid: String,
    mounted_at: Vec<PathBuf>,
    #[serde(flatten)]
    statistics: Statistics,
}

pub fn status(reach: &Reach, out: &mut Output) -> Result<ExitCode, Failure> {
    let store = reach.read()?;
    let status = Status {
        store: reach.root().to_owned(),
        uuid: store.format().uuid.clone(),
        mounted_at: reach.mounts(),
        statistics: store.statistics()?,
    };
    out.show(&status, || status.text())?;
    Ok(ExitCode::SUCCESS)
}

impl Status {
    fn text(&self) -> String {
        let Statistics { logical_bytes, unique_bytes, shared_bytes, disk, checkpoints, plain, runs } =
            &self.statistics;
        let mounted = match self.mounted_at.as_slice() {
            [] => "not mounted".to_owned(),
            targets => targets.iter().map(|t| t.display().to_string()).collect::<Vec<_>>().join(", "),
        };
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _infallible = writeln!(text, "{name:<9}{value}");
        };
        line("store", self.store.display().to_string());
        line("mount", mounted);
        line(
            "logical",
            format!(
                "{} in {checkpoints} checkpoint directories and {} plain files",
                human(*logical_bytes),
                plain.files
            ),
        );
        line(
            "content",
            format!("{} held by one, {} shared by several", human(*unique_bytes), human(*shared_bytes)),
        );
        line(
            "disk",
            format!(
                "{}: packs {}, unsettled files {}, cache {}, catalog {}, records {}",
                human(disk.total_bytes),
                human(disk.packs_bytes),
                human(disk.live_bytes),
                human(disk.cache_bytes),
                human(disk.catalog_bytes),
                human(disk.records_bytes)
            ),
        );
        if !runs.is_empty() {
            text.push('\n');
            text.push_str(&runs_table(runs));
        }
        text
    }
}

fn run_name(kind: RunKind, run: &str) -> String {
    match kind {
        RunKind::Run => run.to_owned(),
        RunKind::Model => format!("models/{run}"),
        RunKind::Moved => format!("{run} (moved away)"),
    }
}

fn runs_table(runs: &[RunStatistics]) -> String {
    let row = |run: &RunStatistics| {
        vec![
            run_name(run.kind, &run.run),
            run.records.len().to_string(),
            human(run.logical_bytes).to_string(),
            human(run.unique_bytes).to_string(),
        ]
    };
    let columns = [
        ("RUN", Align::Left),
        ("SAVES", Align::Right),
        ("LOGICAL", Align::Right),
        ("ONLY ITS OWN", Align::Right),
    ];
    table(&columns, &runs.iter().map(row).collect::<Vec<_>>())
}

pub fn ls(reach: &Reach, run: Option<&str>, out: &mut Output) -> Result<ExitCode, Failure> {
    let mut runs = reach.read()?.statistics()?.runs;
    if let Some(wanted) = run {
        let names: Vec<String> = runs.iter().map(|run| run_name(run.kind, &run.run)).collect();
        runs.retain(|run| run.run == wanted || run_name(run.kind, &run.run) == wanted);
        if runs.is_empty() {
            let near = match names.len() {
                0 => "the store holds no checkpoints yet".to_owned(),
                1..=10 => format!("the store has {}", names.join(", ")),
                count => format!("the store has {count} others"),
            };
            return Err(StoreError::NoCheckpoint { what: wanted.to_owned(), near }.into());
        }
    }
    let records: Vec<&RecordStatistics> = runs.iter().flat_map(|run| &run.records).collect();
    out.show(&records, || {
        let rows: Vec<_> =
            runs.iter().flat_map(|run| run.records.iter().map(|record| ls_row(run.kind, record))).collect();
        let columns = [
            ("RUN", Align::Left),
            ("STEP", Align::Right),
            ("SAVED", Align::Left),
            ("LOGICAL", Align::Right),
            ("ONLY ITS OWN", Align::Right),
            ("VERIFIED", Align::Left),
        ];
        table(&columns, &rows)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn ls_row(kind: RunKind, record: &RecordStatistics) -> Vec<String> {
    let step = record.step.map(|step| step.to_string());
    vec![
        run_name(kind, &record.run),
        step.or_else(|| record.version.clone()).unwrap_or_default(),
        record.saved_at.clone(),
        human(record.logical_bytes).to_string(),
        human(record.unique_bytes).to_string(),
        record.verified_at.clone().unwrap_or_else(|| "never".to_owned()),
    ]
}

#[derive(Serialize)]
struct Shown {
    /// None for a release.
    name: Option<String>,
    path: String,
    #[serde(flatten)]
    record: RecordStatistics,
    files: Vec<FileStatistics>,
}

pub fn show(reach: &Reach, checkpoint: &str, out: &mut Output) -> Result<ExitCode, Failure> {
    let store = reach.read()?;
    let checkpoint = store.select(&reach.checkpoint_name(checkpoint))?;
    let (record, files) = store.file_statistics(&checkpoint)?;
    let (name, path) = (store.full_name(&checkpoint)?, store.tree_path(&checkpoint)?);
    let shown = Shown { name, path, record, files };
    out.show(&shown, || shown.text())?;
    Ok(ExitCode::SUCCESS)
}

impl Shown {
    fn text(&self) -> String {
        let record = &self.record;
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _infallible = writeln!(text, "{name:<9}{value}");
        };
        line("name", self.name.as_deref().unwrap_or(&self.path));
        line("path", &self.path);
        for face in record.faces.iter().filter(|face| face.path != self.path) {
            line("also", &face.path);
        }
        line("saved", &record.saved_at);
        line("verified", record.verified_at.as_deref().unwrap_or("never"));
        line("logical", &human(record.logical_bytes).to_string());
        line("own", &format!("{} that nothing else holds", human(record.unique_bytes)));
        let rows: Vec<Vec<String>> = self
            .files
            .iter()
            .map(|file| {
                vec![
                    file.path.clone(),
                    human(file.size_bytes).to_string(),
                    human(file.unique_bytes).to_string(),
                    file.sha256.to_string(),
                ]
            })
            .collect();
        let columns = [
            ("FILE", Align::Left),
            ("SIZE", Align::Right),
            ("ONLY ITS OWN", Align::Right),
            ("SHA-256", Align::Left),
        ];
        text + "\n" + &table(&columns, &rows)
    }
}
