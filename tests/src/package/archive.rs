//! Archives that are the same bytes whenever, wherever and by whomever they are made.

use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

/// One file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path in the archive, with `/` between directories.
    pub path: String,
    /// What it holds.
    pub bytes: Vec<u8>,
    /// Whether it is to be run.
    pub executable: bool,
}

/// The time that all files carry: the first second of 1980, which every archiver can express. Zero would be reported as
/// implausible by some.
const MODIFIED: u64 = 315_532_800;

/// A `.tar.gz` of the entries in the order of their paths. Neither the clock nor the machine leaves a trace: one time,
/// owner 0, two modes, and a gzip header without name, time or operating system.
///
/// # Errors
/// A path cannot be stored.
pub fn tar_gz(entries: &[Entry]) -> io::Result<Vec<u8>> {
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    // 255: the operating system is unknown (RFC 1952)
    let gzip = GzBuilder::new().mtime(0).operating_system(255);
    let mut tar = tar::Builder::new(gzip.write(Vec::new(), Compression::best()));
    for entry in sorted {
        let mut header = tar::Header::new_ustar();
        header.set_size(entry.bytes.len() as u64);
        header.set_mode(if entry.executable { 0o755 } else { 0o644 });
        header.set_mtime(MODIFIED);
        header.set_uid(0);
        header.set_gid(0);
        header.set_entry_type(tar::EntryType::Regular);
        tar.append_data(&mut header, &entry.path, entry.bytes.as_slice())?;
    }
    let mut gzip = tar.into_inner()?;
    gzip.flush()?;
    gzip.finish()
}

/// SHA-256 in small hexadecimal digits, as krew and `sha256sum` write it.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn entry(path: &str, executable: bool) -> Entry {
        Entry {
            path: path.to_owned(),
            bytes: path.repeat(3).into_bytes(),
            executable,
        }
    }

    #[test]
    fn the_order_of_the_entries_does_not_matter_and_their_content_does() {
        let (a, b) = (entry("LICENSE", false), entry("kubectl-x", true));
        let one = tar_gz(&[a.clone(), b.clone()]).unwrap();
        assert_eq!(one, tar_gz(&[b.clone(), a.clone()]).unwrap());
        let other = Entry {
            bytes: b"other".to_vec(),
            ..a
        };
        assert_ne!(one, tar_gz(&[other, b]).unwrap());
    }

    #[test]
    fn nothing_of_the_machine_is_in_it() {
        let bytes = tar_gz(&[entry("bin/kubectl-x", true), entry("LICENSE", false)]).unwrap();
        // gzip: flags 0 (no name), time 0, operating system unknown
        assert_eq!(bytes[3..8], [0, 0, 0, 0, 0]);
        assert_eq!(bytes[9], 255);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let mut seen = Vec::new();
        for file in archive.entries().unwrap() {
            let mut file = file.unwrap();
            let header = file.header().clone();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            assert_eq!(header.mtime().unwrap(), MODIFIED);
            assert_eq!(header.username().unwrap().unwrap_or_default(), "");
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            seen.push((file.path().unwrap().display().to_string(), header.mode().unwrap(), text));
        }
        let expected = [("LICENSE", 0o644), ("bin/kubectl-x", 0o755)];
        assert_eq!(
            seen,
            expected.map(|(path, mode)| (path.to_owned(), mode, path.repeat(3)))
        );
    }

    #[test]
    fn sums_are_those_of_sha256sum() {
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
