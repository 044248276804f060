//! Sealing: the one metadata commit that makes a directory complete, visible under its final name, and
//! immutable.
//!
//! Order, and what a crash after each step leaves:
//! 1. hash and check: nothing has changed;
//! 2. packs and their indexes are made durable: pending packs, removed at the next start;
//! 3. the record is written: one record too many, removed at the next start;
//! 4. the catalog commits, durably: the checkpoint exists, with LATEST and latest;
//! 5. raw names are removed and holes punched: left-overs, dealt with at the next start.
//!
//! The caller keeps everyone from changing the directory meanwhile.

use std::collections::BTreeMap;

use crate::catalog::{Checkpoint, Durability, Face, Inode, RecipeId, RenameMode, SealState, Txn};
use crate::check::{self, Candidate, Checked, FileFacts, PORTABLE_MANIFEST_FILE, WEIGHTS_FILE};
use crate::digest::ChunkDigest;
use crate::error::{Result, StoreError};
use crate::faces::{self, Derive, Planting};
use crate::io::unlink_if_present;
use crate::manifest::CheckpointManifest;
use crate::policy::{self, SealTarget};
use crate::recipe::Recipe;
use crate::record::{Change, Entry, EntryFile, Event, FaceName, Record, SealedTree, SegmentForm};
use crate::settle::{Placing, Settlement};
use crate::store::Store;
use crate::subtree::{Node, Subtree, join_path, remove_subtree};
use crate::time::now_ns;

/// A rename that seals.
#[derive(Debug, Clone, Copy)]
pub struct SealRequest<'a> {
    pub from: (u64, &'a [u8]),
    pub to: (u64, &'a [u8]),
    pub target: &'a SealTarget,
    /// The new name exists, and its tree gets the old one.
    pub exchange: bool,
}

/// What the caller has to do after a seal or a removal.
#[derive(Debug, Default)]
pub struct Aftermath {
    /// Inodes without a name, to be reclaimed once nobody uses them.
    pub orphans: Vec<u64>,
    /// Names that changed although nobody named them: (directory, name). Caches of them are stale.
    pub stale: Vec<(u64, Vec<u8>)>,
}

/// A file of the tree being sealed.
struct Member<'t> {
    path: &'t str,
    /// With the modification time of its bytes.
    inode: Inode,
    content: Content,
    facts: FileFacts,
}

enum Content {
    /// Index into the settlement.
    Settling(usize),
    Settled(RecipeId),
}

impl Store {
    /// Seals a directory. A failed check is `SealRefused` with every reason, and changes nothing.
    pub fn seal(&self, request: SealRequest<'_>) -> Result<Aftermath> {
        let root = self.read(|txn| txn.child(request.from.0, request.from.1))?;
        let what = join_path(&request.target.path());
        if !root.is_dir() {
            return Err(refused(&what, vec!["only a directory can become a checkpoint".to_owned()]));
        }
        let tree = self.read(|txn| Subtree::list(txn, root.ino))?;
        let mut reasons = tree.problems.clone();
        reasons.extend(shape_problems(&tree));
        if !reasons.is_empty() {
            return Err(refused(&what, reasons));
        }
        self.check_destination(&request)?;
        let mut settlement = Settlement::new(self);
        let members = self.settle_members(&tree, &mut settlement)?;
        let files: BTreeMap<String, FileFacts> =
            members.iter().map(|member| (member.path.to_owned(), member.facts)).collect();
        let read = |path: &str| {
            let member = members.iter().find(|member| member.path == path);
            member.map_or_else(
                || Err(StoreError::NotFound { what: path.to_owned() }),
                |m| self.read_whole(&m.inode, check::MAX_JSON_BYTES),
            )
        };
        let checked = check::check(request.target, &Candidate { files: &files, read: &read })?
            .map_err(|reasons| refused(&what, reasons))?;
        let portable = portable_manifest(request.target, &checked, &files, &what)?;
        let portable = portable.map(|bytes| settlement.add_bytes(&bytes));
        settlement.make_durable()?;
        let sealing = Sealing { store: self, request, root: &root, tree: &tree, members: &members, portable };
        let aftermath = sealing.commit(&settlement)?;
        settlement.finish_aside();
        Ok(aftermath)
    }

    /// The final name must be free, or taken by what an exchange moves away.
    fn check_destination(&self, request: &SealRequest<'_>) -> Result<()> {
        let what = || join_path(&request.target.path());
        match self.read(|txn| txn.lookup(request.to.0, request.to.1))? {
            Some(_) if !request.exchange => Err(StoreError::NotEmpty { what: what() }),
            None if request.exchange => Err(StoreError::NotFound { what: what() }),
            Some(_) if request.target.face == Face::Release => {
                Err(StoreError::Forbidden { what: what(), why: "a released model is immutable" })
            }
            _ => Ok(()),
        }
    }

    fn settle_members<'t>(
        &self,
        tree: &'t Subtree,
        settlement: &mut Settlement<'_>,
    ) -> Result<Vec<Member<'t>>> {
        let mut members = Vec::new();
        for node in tree.files() {
            let mut inode = node.inode.clone();
            let (content, facts) = match inode.recipe {
                Some(recipe) if !inode.raw => {
                    let row = self.read(|txn| txn.recipe_row(recipe))?;
                    (Content::Settled(recipe), FileFacts { size_bytes: row.size_bytes, sha256: row.sha256 })
                }
                _ => {
                    let index = if inode.raw {
                        settlement.add_raw(inode.ino, Placing::Any)?
                    } else {
                        settlement.add_bytes(&[])
                    };
                    let file = &settlement.files[index];
                    // While a file is raw the catalog does not follow its modification time.
                    inode.mtime_ns = file.signature.map_or(inode.mtime_ns, |signature| signature.mtime_ns);
                    (Content::Settling(index), FileFacts { size_bytes: file.size_bytes, sha256: file.sha256 })
                }
            };
            members.push(Member { path: &node.path, inode, content, facts });
        }
        Ok(members)
    }
}

fn refused(what: &str, reasons: Vec<String>) -> StoreError {
    StoreError::SealRefused { what: what.to_owned(), reasons }
}

/// A checkpoint holds files and directories, each under one name.
fn shape_problems(tree: &Subtree) -> Vec<String> {
    let problem = |node: &Node| {
        if node.inode.is_dir() {
            None
        } else if !node.inode.is_file() {
            Some(format!("{}: not a regular file", node.path))
        } else if node.inode.nlink != 1 {
            Some(format!("{}: has another hard link, which would become immutable too", node.path))
        } else {
            None
        }
    };
    tree.nodes.iter().filter_map(problem).collect()
}

/// Generates the portable face's manifest for a resumable step with weights. The same checkpoint always gives
/// the same bytes.
fn portable_manifest(
    target: &SealTarget,
    checked: &Checked,
    files: &BTreeMap<String, FileFacts>,
    what: &str,
) -> Result<Option<Vec<u8>>> {
    let (Face::Resumable, Checked::Full(manifest)) = (target.face, checked) else { return Ok(None) };
    let Some(weights) = files.get(WEIGHTS_FILE) else { return Ok(None) };
    let portable = CheckpointManifest::from_manifest(manifest, weights.sha256)
        .map_err(|error| refused(what, vec![error.to_string()]))?;
    Ok(Some(portable.to_bytes()))
}

/// A seal whose bytes are durable.
struct Sealing<'a> {
    store: &'a Store,
    request: SealRequest<'a>,
    root: &'a Inode,
    tree: &'a Subtree,
    members: &'a [Member<'a>],
    /// The portable manifest's index in the settlement.
    portable: Option<usize>,
}

impl Sealing<'_> {
    fn commit(&self, settlement: &Settlement<'_>) -> Result<Aftermath> {
        let store = self.store;
        let _order = store.record_order.lock();
        let at_ns = now_ns();
        let seq = store.read(|txn| txn.meta("last_record"))? + 1;
        let replaced_face = self.outdated_portable(settlement)?;
        let record = Record::new(seq, at_ns, self.event(settlement, replaced_face.as_ref())?);
        record.write(&*store.io, &store.layout)?;
        let committed = store.write(Durability::Durable, |txn| {
            let recipes = settlement.commit(txn)?;
            txn.set_meta("last_record", seq)?;
            self.apply(txn, settlement, &recipes, replaced_face.as_ref(), (seq, at_ns))
        });
        if committed.is_err() {
            // Without its commit the record says something that did not happen.
            unlink_if_present(&*store.io, &store.layout.record(seq))?;
        }
        committed
    }

    fn seal_state(&self) -> SealState {
        if self.request.target.face == Face::Release { SealState::Released } else { SealState::Sealed }
    }

    /// Finds the portable face that an earlier save of the same step left, when it is not the same content.
    fn outdated_portable(&self, settlement: &Settlement<'_>) -> Result<Option<OldFace>> {
        let Some(portable) = self.portable else { return Ok(None) };
        let target = SealTarget::portable(&self.request.target.run, self.request.target.step);
        let path = target.path();
        self.store.read(|txn| {
            let Some(root) = txn.resolve(path.iter().map(Vec::as_slice))? else { return Ok(None) };
            let weights = |path: &str| self.members.iter().find(|m| m.path == path).map(|m| m.facts.sha256);
            let mut wanted: BTreeMap<String, _> = self
                .portable_members()
                .map(|member| (member.path.to_owned(), weights(member.path)))
                .collect();
            wanted.insert(PORTABLE_MANIFEST_FILE.to_owned(), Some(settlement.files[portable].sha256));
            let mut found = BTreeMap::new();
            for node in Subtree::list(txn, root.ino)?.files() {
                let sha256 =
                    node.inode.recipe.map(|id| txn.recipe_row(id)).transpose()?.map(|row| row.sha256);
                found.insert(node.path.clone(), sha256);
            }
            Ok(Some(OldFace { path, same: found == wanted }))
        })
    }

    fn portable_members(&self) -> impl Iterator<Item = &Member<'_>> {
        self.members.iter().filter(|member| policy::is_portable(member.path))
    }

    /// Lists the directories that hold portable files, parents first.
    fn portable_dirs(&self) -> impl Iterator<Item = (&str, &Inode)> {
        let holds = |dir: &str| {
            dir.is_empty()
                || self
                    .portable_members()
                    .any(|m| m.path.strip_prefix(dir).is_some_and(|p| p.starts_with('/')))
        };
        self.tree
            .nodes
            .iter()
            .filter(move |node| node.inode.is_dir() && holds(&node.path))
            .map(|n| (n.path.as_str(), &n.inode))
    }

    fn makes_portable(&self, old: Option<&OldFace>) -> Option<usize> {
        self.portable.filter(|_| !old.is_some_and(|face| face.same))
    }

    fn event(&self, settlement: &Settlement<'_>, old: Option<&OldFace>) -> Result<Event> {
        let mut recipes = BTreeMap::new();
        let mut file = |member: &Member<'_>| -> Result<EntryFile> {
            let (recipe, pack) = match &member.content {
                Content::Settling(index) => {
                    let settled = &settlement.files[*index];
                    ((*settled.recipe).clone(), settled.whole_pack())
                }
                Content::Settled(id) => {
                    self.store.read(|txn| Ok((txn.recipe(*id)?, txn.recipe_row(*id)?.whole_pack)))?
                }
            };
            Ok(entry_file(&mut recipes, &recipe, member.facts, pack.map(|id| id.to_string())))
        };
        let mut entries = Vec::new();
        let mut by_path = BTreeMap::new();
        for node in &self.tree.nodes {
            let member = self.members.iter().find(|member| member.path == node.path);
            let file = member.map(&mut file).transpose()?;
            let inode = member.map_or(&node.inode, |member| &member.inode);
            let entry = entry(&node.path, inode, file);
            by_path.insert(node.path.as_str(), entry.clone());
            entries.push(entry);
        }
        let target = self.request.target;
        let face = FaceName::of(target.face).expect("a target is never moved away");
        let mut trees = vec![SealedTree { path: join_path(&target.path()), face, entries }];
        let mut replaced = Vec::new();
        let from = self.store.read(|txn| path_to(txn, self.request.from))?;
        if self.root.seal.immutable() {
            // It was sealed before and moved away since; this seal brings it back.
            replaced.push(Change::Remove { path: from.clone() });
        }
        if self.request.exchange {
            replaced.push(Change::Move { from: join_path(&target.path()), to: from });
        }
        if let Some(portable) = self.makes_portable(old) {
            if let Some(face) = old {
                replaced.push(Change::Remove { path: join_path(&face.path) });
            }
            let settled = &settlement.files[portable];
            let facts = FileFacts { size_bytes: settled.size_bytes, sha256: settled.sha256 };
            let file = entry_file(&mut recipes, &settled.recipe, facts, None);
            let dirs = self.portable_dirs().map(|(path, _)| path);
            let paths = dirs.chain(self.portable_members().map(|member| member.path));
            let mut entries: Vec<Entry> = paths.filter_map(|path| by_path.get(path).cloned()).collect();
            entries.push(entry(PORTABLE_MANIFEST_FILE, self.root, Some(file)));
            let path = join_path(&SealTarget::portable(&target.run, target.step).path());
            trees.push(SealedTree { path, face: FaceName::Portable, entries });
        }
        Ok(Event::Seal { trees, replaced, recipes })
    }

    fn apply(
        &self,
        txn: &Txn<'_>,
        settlement: &Settlement<'_>,
        recipes: &[RecipeId],
        old: Option<&OldFace>,
        (seq, at_ns): (u64, i64),
    ) -> Result<Aftermath> {
        self.check_unchanged(txn)?;
        let seal = self.seal_state();
        for member in self.members {
            if let Content::Settling(index) = member.content {
                if member.inode.raw {
                    settlement.settle_inode(txn, &settlement.files[index], recipes[index])?;
                } else {
                    txn.put_inode(&Inode { recipe: Some(recipes[index]), ..txn.inode(member.inode.ino)? })?;
                }
            }
        }
        for node in &self.tree.nodes {
            txn.put_inode(&Inode { seal, ..txn.inode(node.inode.ino)? })?;
        }
        let target = self.request.target;
        let mut aftermath = Aftermath::default();
        if self.request.exchange {
            let old_root = txn.child(self.request.to.0, self.request.to.1)?.ino;
            if let Some(checkpoint) = txn.checkpoint_at(old_root)? {
                txn.put_checkpoint(&Checkpoint { face: Face::Moved, ..checkpoint })?;
            }
            txn.rename(self.request.from, self.request.to, RenameMode::Exchange, at_ns)?;
        } else {
            txn.rename(self.request.from, self.request.to, RenameMode::NoReplace, at_ns)?;
        }
        let checkpoint = Checkpoint {
            seq: seq * 2,
            face: target.face,
            run: target.run.clone(),
            step: target.step,
            version: target.version.clone(),
            root: self.root.ino,
            sealed_at_ns: at_ns,
            verified_at_ns: None,
        };
        txn.put_checkpoint(&checkpoint)?;
        if let Some(portable) = self.makes_portable(old) {
            let size_bytes = settlement.files[portable].size_bytes;
            let manifest = (recipes[portable], size_bytes);
            let root = self.plant_portable(txn, recipes, manifest, old, at_ns, &mut aftermath)?;
            let portable = Checkpoint { seq: seq * 2 + 1, face: Face::Portable, root, ..checkpoint };
            txn.put_checkpoint(&portable)?;
        } else if self.portable.is_some() {
            // The same step saved again with the same content is the newest once more.
            if let Some(kept) = txn.checkpoint(Face::Portable, &target.run, target.step)? {
                txn.remove_checkpoint(kept.root)?;
                txn.put_checkpoint(&Checkpoint { seq: seq * 2 + 1, ..kept })?;
            }
        }
        for face in [target.face, Face::Portable] {
            if face == target.face || self.portable.is_some() {
                aftermath.orphans.extend(faces::derive_latest(
                    txn,
                    face,
                    &target.run,
                    Derive::Create,
                    at_ns,
                )?);
            }
        }
        Ok(aftermath)
    }

    /// What is sealed is what was hashed: a change of names that was under way when the directory was frozen may
    /// have come through since.
    fn check_unchanged(&self, txn: &Txn<'_>) -> Result<()> {
        let now = Subtree::list(txn, self.root.ino)?;
        let key =
            |node: &Node| (node.path.clone(), node.inode.ino, node.inode.is_dir() || node.inode.nlink == 1);
        let same = now.problems.is_empty() && now.nodes.iter().map(key).eq(self.tree.nodes.iter().map(key));
        let from = txn.lookup(self.request.from.0, self.request.from.1)?;
        if same && from == Some(self.root.ino) {
            return Ok(());
        }
        Err(StoreError::Busy { what: join_path(&self.request.target.path()) })
    }

    fn plant_portable(
        &self,
        txn: &Txn<'_>,
        recipes: &[RecipeId],
        manifest: (RecipeId, u64),
        old: Option<&OldFace>,
        at_ns: i64,
        aftermath: &mut Aftermath,
    ) -> Result<u64> {
        let target = SealTarget::portable(&self.request.target.run, self.request.target.step);
        let mut dir_path = target.path();
        let name = dir_path.pop().expect("a target's path has names");
        let dir = faces::ensure_dir(txn, &dir_path, &txn.inode(self.request.to.0)?, at_ns)?;
        if let Some(face) = old {
            let root = txn.child(dir, face.path.last().expect("a target's path has names"))?;
            txn.remove_checkpoint(root.ino)?;
            aftermath.orphans.extend(remove_subtree(txn, dir, &name, at_ns)?);
            aftermath.stale.push((dir, name.clone()));
        }
        let mut plantings: Vec<Planting<'_>> =
            self.portable_dirs().map(|(path, like)| Planting { path, like, recipe: None }).collect();
        for member in self.portable_members() {
            let recipe = match member.content {
                Content::Settling(index) => recipes[index],
                Content::Settled(id) => id,
            };
            let recipe = Some((recipe, member.facts.size_bytes));
            plantings.push(Planting { path: member.path, like: &member.inode, recipe });
        }
        let like = Inode { mode: self.root.mode & 0o666, mtime_ns: self.root.mtime_ns, ..self.root.clone() };
        plantings.push(Planting { path: PORTABLE_MANIFEST_FILE, like: &like, recipe: Some(manifest) });
        faces::plant(txn, (dir, &name), &plantings, SealState::Sealed, at_ns)
    }
}

struct OldFace {
    path: Vec<Vec<u8>>,
    /// It holds what would be made anew.
    same: bool,
}

fn entry(path: &str, inode: &Inode, file: Option<EntryFile>) -> Entry {
    let mode = if inode.is_dir() && file.is_some() { inode.mode & 0o666 } else { inode.mode };
    Entry { path: path.to_owned(), mode, uid: inode.uid, gid: inode.gid, mtime_ns: inode.mtime_ns, file }
}

fn entry_file(
    recipes: &mut BTreeMap<ChunkDigest, Vec<SegmentForm>>,
    recipe: &Recipe,
    facts: FileFacts,
    pack: Option<String>,
) -> EntryFile {
    let name = ChunkDigest::of(&recipe.encode());
    recipes.entry(name).or_insert_with(|| recipe.segments.iter().map(SegmentForm::of).collect());
    EntryFile { size: facts.size_bytes, sha256: facts.sha256, recipe: name, pack }
}

/// Spells the path of a name.
pub(crate) fn path_to(txn: &Txn<'_>, (parent, name): (u64, &[u8])) -> Result<String> {
    let mut path = txn.path_of(parent)?.unwrap_or_default();
    path.push(name.to_vec());
    Ok(join_path(&path))
}
