//! Reads files and directories.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use shunt_core::model::Change;

use crate::source::spanned_yaml::{Diagnostic, Severity};

use super::collection::{Collection, FileId};
use super::{Context, Error, parse};

/// The size limit of a file. 100 000 endpoints in one file are some 20 MB.
const SIZE_LIMIT: u64 = 128 << 20;

/// The number of unused kinds that are named.
const NOT_USED_LIMIT: usize = 50;

/// A reader of files and directories into a collection. It logs each problem when it occurs.
pub(super) struct Scanner {
    pub(super) roots: Vec<PathBuf>,
    context: Context<'static>,
    pub(super) collection: Collection,
    not_used: BTreeSet<String>,
    /// The number of times that a file could not be read, or was no YAML or JSON.
    pub(super) unusable: usize,
    /// The problems of whole paths.
    pub(super) root_problems: Vec<Option<Diagnostic>>,
}

impl Scanner {
    /// Checks that all paths exist. `-` is stdin, which ends.
    pub(super) fn new(roots: &[PathBuf], node_name: &str) -> Result<Scanner, Error> {
        for path in roots.iter().filter(|path| !is_stdin(path)) {
            fs::metadata(path).map_err(|reason| Error::Path { path: path.clone(), reason })?;
        }
        Ok(Scanner {
            roots: roots.to_vec(),
            context: Context { node_name: node_name.into(), ..Context::default() },
            collection: Collection::default(),
            not_used: BTreeSet::new(),
            unusable: 0,
            root_problems: vec![None; roots.len()],
        })
    }

    /// Reads all files of a path. Returns false if the path is gone or cannot be read: its previous
    /// content stays.
    pub(super) fn scan(&mut self, root: usize) -> bool {
        let path = &self.roots[root];
        let problem = match manifests_at(path) {
            Ok(files) => {
                let file = |path: PathBuf| FileId { root, path: path.into() };
                let files: BTreeSet<FileId> = files.into_iter().map(file).collect();
                let known = &mut self.collection.files;
                known.retain(|file, _| file.root != root || files.contains(file));
                // Sorted by name, for a readable log.
                files.into_iter().for_each(|file| self.load(file));
                None
            }
            Err(error) => {
                let reason = format!(
                    "cannot read the path of the manifests: {error}; its previous content stays in \
                     effect until it is back"
                );
                let problem = Diagnostic::new(Severity::Error, "", reason);
                Some(problem.in_file(&path.as_path().into(), None))
            }
        };
        let good = problem.is_none();
        if self.root_problems[root] != problem {
            match &problem {
                Some(problem) => problem.log(),
                None => {
                    let path = self.roots[root].display();
                    tracing::info!(%path, "manifests can be read again");
                }
            }
            self.root_problems[root] = problem;
        }
        good
    }

    /// Reads a file in a directory, if it is complete or gone.
    pub(super) fn look_at(&mut self, root: usize, name: &OsStr, complete: bool) {
        let path = self.roots[root].join(name);
        if complete || fs::symlink_metadata(&path).is_err() {
            self.load(FileId { root, path: path.into() });
        }
    }

    fn load(&mut self, file: FileId) {
        let result = match read(&file.path) {
            Ok(Some(bytes)) => parse(&file.path, &bytes, &mut self.context),
            Ok(None) => {
                self.collection.files.remove(&file);
                return;
            }
            Err(reason) => {
                let problem = Diagnostic::new(Severity::Error, "", reason);
                Err(Box::new(problem.in_file(&file.path, None)))
            }
        };
        match result {
            Ok(mut manifest) => {
                self.not_used.append(&mut manifest.not_used);
                self.log_new(&file, &manifest.problems);
                self.collection.files.insert(file, manifest);
            }
            Err(mut problem) => {
                self.unusable += 1;
                if self.collection.files.contains_key(&file) {
                    problem.reason.push_str(" (the previous content of the file stays in effect)");
                }
                self.log_new(&file, std::slice::from_ref(&*problem));
                // Its previous content stays.
                self.collection.files.entry(file).or_default().problems = vec![*problem];
            }
        }
    }

    fn log_new(&self, file: &FileId, problems: &[Diagnostic]) {
        let known = self.collection.files.get(file);
        if known.map_or(&[][..], |known| &known.problems) != problems {
            problems.iter().for_each(Diagnostic::log);
        }
    }

    /// Logs the kinds of objects that shunt does not use.
    pub(super) fn log_not_used(&self) {
        if !self.not_used.is_empty() {
            let kinds = self.not_used.iter().map(String::as_str).take(NOT_USED_LIMIT);
            let kinds: Vec<&str> = kinds.collect();
            tracing::info!("objects of other kinds are ignored: {}", kinds.join(", "));
        }
    }

    /// Returns the changes since the last call.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        let (changes, contests) = self.collection.finish();
        contests.iter().for_each(Diagnostic::log);
        changes
    }
}

/// Returns the manifests in a directory by name, or the file at this path.
pub(crate) fn manifests_at(path: &Path) -> io::Result<Vec<PathBuf>> {
    if is_stdin(path) || !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let paths = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.file_name().is_some_and(is_manifest));
    paths.sort();
    Ok(paths)
}

/// Returns true for names of manifests in a directory: not hidden, and no temporary file of an
/// editor.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    let suffix = [&b".yaml"[..], b".yml", b".json"].iter().any(|suffix| bytes.ends_with(suffix));
    suffix && !bytes.starts_with(b".") && !bytes.starts_with(b"#")
}

pub(super) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns the content of a file or of stdin (`-`), or None for a missing file or a directory.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let read_error = |error: io::Error| format!("cannot be read: {error}");
    let too_big = || format!("larger than {} MiB; split it", SIZE_LIMIT >> 20);
    let limited = |file: &mut dyn Read, capacity| {
        let mut bytes = Vec::with_capacity(capacity);
        // The file may grow during the read.
        file.take(SIZE_LIMIT + 1).read_to_end(&mut bytes).map_err(read_error)?;
        if bytes.len() as u64 > SIZE_LIMIT { Err(too_big()) } else { Ok(Some(bytes)) }
    };
    if is_stdin(path) {
        return limited(&mut io::stdin(), 0);
    }
    // Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match fs::symlink_metadata(path) {
                Ok(_) => Err("a symbolic link to a missing file".into()),
                Err(_) => Ok(None),
            };
        }
        Err(error) => return Err(format!("cannot be opened: {error}")),
    };
    let metadata = file.metadata().map_err(read_error)?;
    if metadata.is_dir() {
        return Ok(None);
    }
    if !metadata.is_file() {
        return Err("not a regular file".into());
    }
    if metadata.len() > SIZE_LIMIT {
        return Err(too_big());
    }
    limited(&mut file, usize::try_from(metadata.len()).unwrap_or_default() + 1)
}
