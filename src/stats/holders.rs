//! Who holds which chunk.
//!
//! Each chunk's state only ever rises: one holder, several holders of one group (run), several groups. So one
//! pass over the names and one over the recipes are enough, with one map entry for each distinct chunk.

use std::collections::{HashMap, HashSet};

use super::{Holding, RunKind};
use crate::catalog::{Checkpoint, NamedFile, ROOT_INO, RecipeId, Txn};
use crate::digest::ChunkDigest;
use crate::error::{IoContext, Result};
use crate::names::Step;
use crate::recipe::Recipe;
use crate::store::Store;

/// Numbers a holder within one census.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HolderId(u32);

impl HolderId {
    /// All plain files together.
    pub(super) const PLAIN: Self = Self(0);
}

/// A run, a model, or the trees moved away that once were one run's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Group {
    pub kind: RunKind,
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    By(HolderId),
    /// Several holders of one group.
    Within(u32),
    Widely,
}

/// What is known of a recipe.
#[derive(Debug, Clone, Copy)]
struct RecipeUse {
    held: Held,
    literal_bytes: u64,
}

/// The whole count.
#[derive(Debug)]
pub(super) struct Census {
    pub(super) checkpoints: Vec<Checkpoint>,
    /// By checkpoint, in the same order.
    faces: Vec<Holding>,
    /// By checkpoint, in the same order.
    holder_of_face: Vec<HolderId>,
    /// By holder.
    group_of: Vec<u32>,
    /// By group; the first is that of plain files.
    groups: Vec<Option<Group>>,
    holdings: Vec<Holding>,
    group_unique_bytes: Vec<u64>,
    recipes: HashMap<RecipeId, RecipeUse>,
    chunks: HashMap<ChunkDigest, (Held, u32)>,
    widely_bytes: u64,
}

impl Store {
    pub(super) fn census(&self) -> Result<Census> {
        self.read(|txn| {
            let mut census = Census::of_checkpoints(txn.checkpoints()?);
            let raw = census.count_names(txn)?;
            for (ino, holder) in raw {
                // The size in the catalog is older than the file.
                let path = self.layout.live(ino);
                let len = match self.io.metadata(&path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
                    stat => stat.at("stat", &path)?.len(),
                };
                census.add_raw(holder, len);
            }
            census.count_recipes(txn)?;
            census.sum_up();
            Ok(census)
        })
    }
}

impl Census {
    fn of_checkpoints(checkpoints: Vec<Checkpoint>) -> Self {
        let mut census = Self {
            faces: vec![Holding::default(); checkpoints.len()],
            holder_of_face: Vec::with_capacity(checkpoints.len()),
            group_of: vec![0],
            groups: vec![None],
            holdings: vec![Holding::default()],
            group_unique_bytes: vec![],
            recipes: HashMap::new(),
            chunks: HashMap::new(),
            widely_bytes: 0,
            checkpoints,
        };
        let mut holders: HashMap<(Group, Step, String, u64), HolderId> = HashMap::new();
        let mut groups: HashMap<Group, u32> = HashMap::new();
        for checkpoint in &census.checkpoints {
            let kind = RunKind::of(checkpoint);
            let group = Group { kind, name: checkpoint.run.clone() };
            let number = *groups.entry(group.clone()).or_insert_with(|| {
                census.groups.push(Some(group.clone()));
                index(census.groups.len() - 1)
            });
            // Trees moved away are told apart by nothing but their place.
            let place = if kind == RunKind::Moved { checkpoint.root } else { 0 };
            let key = (group, checkpoint.step, checkpoint.version.clone(), place);
            let holder = *holders.entry(key).or_insert_with(|| {
                census.group_of.push(number);
                census.holdings.push(Holding::default());
                HolderId(index(census.holdings.len() - 1))
            });
            census.holder_of_face.push(holder);
        }
        census
    }

    /// Gives every file to its holder. Returns the files with raw bytes.
    fn count_names(&mut self, txn: &Txn<'_>) -> Result<Vec<(u64, HolderId)>> {
        let mut places = Places::new(txn, &self.checkpoints)?;
        let mut linked = HashSet::new();
        let mut raw = Vec::new();
        txn.for_each_file_name(|file| {
            let face = places.face_of(file.parent);
            let holder = face.map_or(HolderId::PLAIN, |face| self.holder_of_face[face]);
            if let Some(recipe) = file.recipe {
                let held = self.merge(self.recipes.get(&recipe).map(|known| known.held), Held::By(holder));
                self.recipes.insert(recipe, RecipeUse { held, literal_bytes: 0 });
            }
            if file.nlink > 1 && !linked.insert(file.ino) {
                return Ok(());
            }
            if file.raw {
                raw.push((file.ino, holder));
            }
            self.add_file(face, holder, &file);
            Ok(())
        })?;
        Ok(raw)
    }

    fn add_file(&mut self, face: Option<usize>, holder: HolderId, file: &NamedFile) {
        let size_bytes = if file.raw { 0 } else { file.size_bytes };
        let own = &mut self.holdings[holder.0 as usize];
        own.files += 1;
        own.logical_bytes += size_bytes;
        if let Some(face) = face {
            self.faces[face].files += 1;
            self.faces[face].logical_bytes += size_bytes;
        }
    }

    /// Raw bytes are in no pack, so nobody shares them.
    fn add_raw(&mut self, holder: HolderId, len_bytes: u64) {
        let own = &mut self.holdings[holder.0 as usize];
        own.logical_bytes += len_bytes;
        own.unique_bytes += len_bytes;
    }

    fn count_recipes(&mut self, txn: &Txn<'_>) -> Result<()> {
        txn.for_each_recipe(|id, recipe| {
            let Some(mut used) = self.recipes.get(&id).copied() else { return Ok(()) };
            used.literal_bytes = recipe.literal_bytes();
            self.recipes.insert(id, used);
            for (digest, len_bytes) in recipe.chunks() {
                let held = self.merge(self.chunks.get(&digest).map(|(held, _)| *held), used.held);
                self.chunks.insert(digest, (held, len_bytes));
            }
            Ok(())
        })
    }

    fn merge(&self, known: Option<Held>, more: Held) -> Held {
        let Some(known) = known else { return more };
        let group = |held: Held| match held {
            Held::By(holder) => Some(self.group_of[holder.0 as usize]),
            Held::Within(group) => Some(group),
            Held::Widely => None,
        };
        match (group(known), group(more)) {
            _ if known == more => known,
            (Some(a), Some(b)) if a == b => Held::Within(a),
            _ => Held::Widely,
        }
    }

    fn sum_up(&mut self) {
        let mut within = vec![0; self.groups.len()];
        let literals = self.recipes.values().map(|used| (used.held, used.literal_bytes));
        let chunks = self.chunks.values().map(|(held, len_bytes)| (*held, u64::from(*len_bytes)));
        for (held, bytes) in literals.chain(chunks) {
            match held {
                Held::By(holder) => self.holdings[holder.0 as usize].unique_bytes += bytes,
                Held::Within(group) => within[group as usize] += bytes,
                Held::Widely => self.widely_bytes += bytes,
            }
        }
        for (holding, group) in self.holdings.iter().zip(&self.group_of) {
            within[*group as usize] += holding.unique_bytes;
        }
        self.group_unique_bytes = within;
    }

    pub(super) fn holding(&self, holder: HolderId) -> Holding {
        self.holdings[holder.0 as usize]
    }

    pub(super) fn logical_bytes(&self) -> u64 {
        self.holdings.iter().map(|holding| holding.logical_bytes).sum()
    }

    pub(super) fn unique_bytes(&self) -> u64 {
        self.holdings.iter().map(|holding| holding.unique_bytes).sum()
    }

    pub(super) fn shared_bytes(&self) -> u64 {
        self.widely_bytes + self.group_unique_bytes.iter().sum::<u64>() - self.unique_bytes()
    }

    /// Lists the groups by name, each with what only it holds and with its holders in the order of steps.
    pub(super) fn groups(&self) -> Vec<(&Group, u64, Vec<HolderId>)> {
        let mut members: Vec<Vec<HolderId>> = vec![vec![]; self.groups.len()];
        for holder in &self.holder_of_face {
            let own = &mut members[self.group_of[holder.0 as usize] as usize];
            if own.last() != Some(holder) {
                own.push(*holder);
            }
        }
        let unique_bytes = self.group_unique_bytes.iter().copied();
        let named = self.groups.iter().zip(unique_bytes).zip(members);
        let mut groups: Vec<_> =
            named.filter_map(|((group, bytes), own)| Some((group.as_ref()?, bytes, own))).collect();
        groups.sort_unstable_by_key(|(group, ..)| *group);
        groups
    }

    pub(super) fn holder_of(&self, root: u64) -> Option<HolderId> {
        let at = self.checkpoints.iter().position(|checkpoint| checkpoint.root == root)?;
        Some(self.holder_of_face[at])
    }

    pub(super) fn faces(&self, holder: HolderId) -> Vec<(&Checkpoint, Holding)> {
        // Checkpoints are in the order of their record, so its faces stand together.
        let start = self.holder_of_face.partition_point(|other| *other < holder);
        let own = self.holder_of_face[start..].iter().take_while(|other| **other == holder).count();
        (start..start + own).map(|at| (&self.checkpoints[at], self.faces[at])).collect()
    }

    /// Sums the bytes of a file that only `holder` has.
    pub(super) fn unique_in(&self, id: RecipeId, recipe: &Recipe, holder: HolderId) -> u64 {
        let own = Held::By(holder);
        let literals =
            self.recipes.get(&id).filter(|used| used.held == own).map_or(0, |used| used.literal_bytes);
        let mut seen = HashSet::new();
        let chunks = recipe.chunks().filter(|(digest, _)| {
            seen.insert(*digest) && self.chunks.get(digest).is_some_and(|(held, _)| *held == own)
        });
        literals + chunks.map(|(_, len_bytes)| u64::from(len_bytes)).sum::<u64>()
    }
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("a catalog holds fewer than 2^32 checkpoints")
}

/// Says which checkpoint a directory belongs to.
struct Places {
    parents: HashMap<u64, u64>,
    /// None: to none. Filled as it is asked.
    faces: HashMap<u64, Option<usize>>,
}

impl Places {
    fn new(txn: &Txn<'_>, checkpoints: &[Checkpoint]) -> Result<Self> {
        let mut faces: HashMap<u64, Option<usize>> =
            checkpoints.iter().enumerate().map(|(at, checkpoint)| (checkpoint.root, Some(at))).collect();
        faces.insert(ROOT_INO, None);
        Ok(Self { parents: txn.directory_parents()?, faces })
    }

    fn face_of(&mut self, dir: u64) -> Option<usize> {
        let mut climbed = Vec::new();
        let mut at = dir;
        let face = loop {
            if let Some(face) = self.faces.get(&at) {
                break *face;
            }
            climbed.push(at);
            match self.parents.get(&at) {
                Some(parent) => at = *parent,
                None => break None,
            }
        };
        self.faces.extend(climbed.into_iter().map(|dir| (dir, face)));
        face
    }
}
