//! Watches files and directories.
//!
//! Owns: inotify ([`Paths`]), and the interpretation of its events for files that are written,
//! replaced by rename, or mounted by Kubernetes.
//!
//! Invariant: a changed path is reported after its change, possibly late or more than once. The
//! caller reads the current content.
//!
//! Must not know: the content of the files.
//!
//! A directory is watched itself and through its parent, so that it can be replaced as a whole, for
//! example as a symbolic link to a new release. A file is watched through its parent, where it may
//! be replaced, and itself, since a process may write it under another name. An event only names a
//! path: the caller reads its current content, so events may be late, doubled or out of order.
//! `IN_MODIFY` is not requested: a file is complete when its writer closes it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::time::sleep;

/// The interval of checks of a path that is missing or cannot be watched.
const RETRY: Duration = Duration::from_secs(1);

/// The number of reads from the queue of events before the events are handled. Each read returns up
/// to 4 kB of events; a process that writes all the time must not starve the handling.
const COALESCE: usize = 64;

/// The same for every directory, because the kernel has one mask per directory however often it is
/// watched.
fn directory_mask() -> AddWatchFlags {
    AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR
}

/// The watched paths.
pub struct Paths {
    inotify: Inotify,
    roots: Vec<Root>,
    /// Returns true for the relevant names of files in a directory.
    matters: fn(&OsStr) -> bool,
}

/// A watched path.
struct Root {
    path: PathBuf,
    /// The parent directory, and the name there; none for `/`.
    parent: Option<(PathBuf, OsString)>,
    parent_watch: Option<WatchDescriptor>,
    /// The watch of the path itself.
    own_watch: Option<WatchDescriptor>,
    is_directory: bool,
    /// The path must be checked again, because no event would report its change.
    retry: bool,
    /// The kernel refused the watch, and a warning is in the log.
    unwatchable: bool,
}

/// The paths and files to read.
#[derive(Debug, Default)]
pub struct Todo {
    /// The numbers of paths to read as a whole.
    pub roots: BTreeSet<usize>,
    /// Files in directories. True if the file is complete; otherwise, only its existence has to be
    /// checked.
    pub files: BTreeMap<(usize, OsString), bool>,
}

impl Paths {
    /// Prepares watches for these files or directories; in directories, for files with relevant
    /// names. [`Paths::watch`] starts them.
    ///
    /// # Errors
    /// If the kernel refuses an inotify instance.
    pub fn new(paths: &[PathBuf], matters: fn(&OsStr) -> bool) -> io::Result<Paths> {
        let inotify =
            Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(|errno| {
                let reason = io::Error::from(errno);
                io::Error::other(format!(
                    "cannot watch files: {reason}; if too many files are open, raise the sysctl \
                     fs.inotify.max_user_instances"
                ))
            })?;
        let roots = paths.iter().map(Root::new).collect();
        Ok(Paths { inotify, roots, matters })
    }

    /// Waits until there may be changes, within a tokio runtime. Cancel-safe.
    ///
    /// # Errors
    /// If the kernel refuses the wait.
    pub async fn wait(&self) -> io::Result<()> {
        let arrival = crate::source::events(&self.inotify)?;
        tokio::select! {
            ready = arrival.readable() => drop(ready?),
            () = sleep(RETRY), if self.roots.iter().any(|root| root.retry) => {}
        }
        Ok(())
    }

    /// Returns what has changed since the last call, and the paths that no event would report.
    ///
    /// # Errors
    /// If the kernel does not return its events.
    pub fn changes(&self) -> io::Result<Todo> {
        let mut todo = Todo::default();
        todo.roots.extend((0..self.roots.len()).filter(|&root| self.roots[root].retry));
        for _ in 0..COALESCE {
            match self.inotify.read_events() {
                Ok(events) => events.iter().for_each(|event| self.note(event, &mut todo)),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(todo)
    }

    /// Sets the watches of a path, so that [`Paths::changes`] reports later ones. Call it before
    /// each read of the path. Without a watch, the path is reported every second.
    pub fn watch(&mut self, number: usize) {
        let root = &mut self.roots[number];
        if let Some((parent, _)) = &root.parent {
            root.parent_watch = self.inotify.add_watch(parent, directory_mask()).ok();
        }
        let before = root.own_watch.take();
        let added = self.inotify.add_watch(&root.path, directory_mask());
        root.is_directory = added.is_ok();
        let watched = match added {
            Ok(watch) => {
                root.own_watch = Some(watch);
                true
            }
            Err(Errno::ENOTDIR) => {
                // The parent's watch sees writes under this name, too.
                let mask = AddWatchFlags::IN_CLOSE_WRITE;
                root.own_watch = self.inotify.add_watch(&root.path, mask).ok();
                root.parent_watch.is_some()
            }
            Err(Errno::ENOENT) => false,
            Err(error) => {
                if !std::mem::replace(&mut root.unwatchable, true) {
                    tracing::warn!(
                        path = %root.path.display(),
                        "cannot watch the path: {error}; checking it every second instead; if there \
                         are too many watches, raise the sysctl fs.inotify.max_user_watches"
                    );
                }
                false
            }
        };
        root.retry = !watched;
        if let Some(before) = before
            && !self.roots.iter().any(|root| root.watches().any(|watch| watch == before))
        {
            // Fails if the directory is gone, which removed the watch already.
            let _ = self.inotify.rm_watch(before);
        }
    }

    /// Reports a path again in a second: its current state is transient.
    pub fn look_again(&mut self, number: usize) {
        self.roots[number].retry = true;
    }

    /// Notes the paths of an event.
    fn note(&self, event: &InotifyEvent, todo: &mut Todo) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            tracing::warn!("inotify queue overflowed, checking all files");
            todo.roots.extend(0..self.roots.len());
        }
        for (number, root) in self.roots.iter().enumerate() {
            if root.own_watch == Some(event.wd) {
                if root.is_directory {
                    self.note_in_directory(number, event, todo);
                } else {
                    todo.roots.insert(number);
                }
            }
            if root.parent_watch == Some(event.wd) && root.is_concerned(event) {
                todo.roots.insert(number);
            }
        }
    }

    fn note_in_directory(&self, root: usize, event: &InotifyEvent, todo: &mut Todo) {
        let Some(name) = &event.name else {
            // The directory itself was deleted, moved or unmounted.
            todo.roots.insert(root);
            return;
        };
        if is_volume_link(name, event) {
            todo.roots.insert(root);
        } else if (self.matters)(name) {
            let complete = is_complete(event, &self.roots[root].path);
            *todo.files.entry((root, name.clone())).or_default() |= complete;
        }
    }
}

impl Root {
    fn new(path: &PathBuf) -> Root {
        // Without an absolute form, the parent is not known: the path itself is watched.
        let absolute = std::path::absolute(path).unwrap_or_default();
        let parent = match (absolute.parent(), absolute.file_name()) {
            (Some(parent), Some(name)) => Some((parent.to_owned(), name.to_owned())),
            _ => None,
        };
        Root {
            path: path.clone(),
            parent,
            parent_watch: None,
            own_watch: None,
            is_directory: false,
            retry: true,
            unwatchable: false,
        }
    }

    fn watches(&self) -> impl Iterator<Item = WatchDescriptor> {
        self.own_watch.into_iter().chain(self.parent_watch)
    }

    /// Returns true if an event in the parent directory concerns the path.
    fn is_concerned(&self, event: &InotifyEvent) -> bool {
        let Some((parent, own_name)) = &self.parent else {
            return false;
        };
        match &event.name {
            None => true,
            Some(name) if name == own_name => {
                // A directory is usable at once, unlike a file.
                self.is_directory
                    || event.mask.contains(AddWatchFlags::IN_ISDIR)
                    || event
                        .mask
                        .intersects(AddWatchFlags::IN_MOVED_FROM | AddWatchFlags::IN_DELETE)
                    || is_complete(event, parent)
            }
            Some(name) => !self.is_directory && is_volume_link(name, event),
        }
    }
}

/// Returns true for the rename of a link such as `..data`, to which the visible files lead:
/// Kubernetes updates a mounted ConfigMap by it. Other events about such names come too early.
fn is_volume_link(name: &OsStr, event: &InotifyEvent) -> bool {
    name.as_encoded_bytes().starts_with(b"..") && event.mask.contains(AddWatchFlags::IN_MOVED_TO)
}

/// Returns true if the file of an event is complete. A new file is incomplete until it is closed,
/// unless it is a link to an existing one.
fn is_complete(event: &InotifyEvent, directory: &Path) -> bool {
    if event.mask.intersects(AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO) {
        return true;
    }
    let Some(name) = event.name.as_ref().filter(|_| event.mask.contains(AddWatchFlags::IN_CREATE))
    else {
        return false;
    };
    let metadata: io::Result<fs::Metadata> = fs::symlink_metadata(directory.join(name));
    metadata.is_ok_and(|metadata| metadata.is_symlink() || metadata.nlink() > 1)
}
