CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('last_record', 0), ('sync', 0), ('boot', 0);

CREATE TABLE packs (
    id INTEGER PRIMARY KEY,
    name BLOB NOT NULL UNIQUE           -- 16 bytes, big-endian
);
-- Packs whose commit is still to come; what stands here at the next start is garbage.
CREATE TABLE pending_packs (name BLOB PRIMARY KEY) WITHOUT ROWID;
-- Ranges to be given back to the disk once nobody has the file open.
CREATE TABLE punches (pack INTEGER NOT NULL, start INTEGER NOT NULL, len INTEGER NOT NULL);

CREATE TABLE chunks (
    digest BLOB PRIMARY KEY,
    pack INTEGER NOT NULL,
    start INTEGER NOT NULL,
    stored INTEGER NOT NULL,
    raw INTEGER NOT NULL,
    encoding INTEGER NOT NULL,
    base BLOB
) WITHOUT ROWID;
CREATE INDEX chunks_by_pack ON chunks (pack);

CREATE TABLE recipes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE,        -- BLAKE3 of body
    size INTEGER NOT NULL,
    sha256 BLOB NOT NULL,
    whole_pack INTEGER,                 -- a pack whose bytes are the file, in order
    body BLOB NOT NULL
);
CREATE INDEX recipes_by_pack ON recipes (whole_pack) WHERE whole_pack IS NOT NULL;

CREATE TABLE inodes (
    ino INTEGER PRIMARY KEY AUTOINCREMENT,
    kind INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    gid INTEGER NOT NULL,
    nlink INTEGER NOT NULL,
    rdev INTEGER NOT NULL,
    size INTEGER NOT NULL,
    atime INTEGER NOT NULL,             -- nanoseconds since 1970
    mtime INTEGER NOT NULL,
    ctime INTEGER NOT NULL,
    raw INTEGER NOT NULL,               -- 1: live/<ino> holds the newest bytes
    recipe INTEGER,
    seal INTEGER NOT NULL,
    charged INTEGER NOT NULL            -- stored bytes that this inode is charged with
);
CREATE INDEX inodes_by_recipe ON inodes (recipe) WHERE recipe IS NOT NULL;
CREATE INDEX inodes_unlinked ON inodes (ino) WHERE nlink = 0;

CREATE TABLE targets (ino INTEGER PRIMARY KEY, target BLOB NOT NULL);

CREATE TABLE entries (
    parent INTEGER NOT NULL,
    name BLOB NOT NULL,
    ino INTEGER NOT NULL,
    PRIMARY KEY (parent, name)
) WITHOUT ROWID;
CREATE INDEX entries_by_ino ON entries (ino);

CREATE TABLE xattrs (
    ino INTEGER NOT NULL,
    name BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (ino, name)
) WITHOUT ROWID;

-- Sealed trees. The one with the highest seq of a run and face is its newest: seq is twice the number of the
-- record that sealed it, and one more for the portable face that came with it.
CREATE TABLE checkpoints (
    seq INTEGER PRIMARY KEY,
    face INTEGER NOT NULL,              -- 1 resumable, 2 portable, 3 release, 0 moved away
    run TEXT NOT NULL,                  -- a release: its model id
    step INTEGER NOT NULL,
    version TEXT NOT NULL,              -- a release: its version
    root INTEGER NOT NULL UNIQUE,
    sealed_at INTEGER NOT NULL,         -- nanoseconds since 1970
    verified_at INTEGER
);
CREATE INDEX checkpoints_by_run ON checkpoints (run, face, step);
