//! Digest newtypes: BLAKE3 names a chunk, SHA-256 names a whole file for the outside world.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::Digest as _;

/// Reports text that is not the lower-case hex of a 32-byte digest.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not 64 lower-case hexadecimal digits")]
pub struct ParseDigestError {
    pub text: String,
}

fn write_hex(bytes: &[u8; 32], out: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}

fn parse_hex(text: &str) -> Result<[u8; 32], ParseDigestError> {
    let bad = || ParseDigestError { text: text.to_owned() };
    if text.len() != 64 {
        return Err(bad());
    }
    let nibble = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0u8; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = nibble(pair[0]).ok_or_else(bad)? << 4 | nibble(pair[1]).ok_or_else(bad)?;
    }
    Ok(bytes)
}

macro_rules! digest_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 32]);

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, out)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, out)
            }
        }

        impl FromStr for $name {
            type Err = ParseDigestError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_hex(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                String::deserialize(input)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

digest_newtype!(
    /// Names a chunk: the BLAKE3-256 of its raw bytes, whatever encoding they are stored in.
    ChunkDigest
);
digest_newtype!(
    /// Names a whole file as manifests do: the SHA-256 of its bytes.
    Sha256Digest
);

impl ChunkDigest {
    /// Computes the name of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl Sha256Digest {
    /// Computes the SHA-256 of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_and_rejects_other_text() {
        let digest = ChunkDigest::of(b"abc");
        assert_eq!(digest.to_string().parse::<ChunkDigest>().unwrap(), digest);
        for bad in ["", "AB", &"g".repeat(64), &"A".repeat(64)] {
            assert!(bad.parse::<ChunkDigest>().is_err(), "{bad}");
        }
        assert_eq!(
            Sha256Digest::of(b"abc").to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
