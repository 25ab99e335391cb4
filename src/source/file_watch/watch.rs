//! Watches paths with inotify.
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
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

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

/// Paths cannot be watched at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path has no absolute form.
    #[error("cannot watch {path}: {reason}")]
    Path {
        /// The path on the command line.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The kernel refuses an inotify instance, or a pipe to end the wait.
    #[error(
        "cannot watch files: {reason}; if too many files are open, raise the sysctl \
         fs.inotify.max_user_instances"
    )]
    Open {
        /// Why.
        reason: io::Error,
    },
    /// Waiting for events failed.
    #[error("cannot wait for changes of files: {reason}")]
    Wait {
        /// Why.
        reason: nix::Error,
    },
}

/// The watched paths.
pub struct Paths {
    inotify: Inotify,
    roots: Vec<Root>,
    /// Returns true for the relevant names of files in a directory.
    matters: fn(&OsStr) -> bool,
    stop: PipeReader,
}

/// A guard whose drop ends the wait of [`Paths`].
#[derive(Debug)]
#[must_use = "it ends the wait when it is dropped"]
pub struct Stop {
    _held: PipeWriter,
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

impl AsFd for Paths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Paths {
    /// Prepares watches for these files or directories; in directories, for files with relevant
    /// names. [`Paths::watch`] starts them.
    ///
    /// # Errors
    /// If the kernel refuses an inotify instance.
    pub fn new(paths: &[PathBuf], matters: fn(&OsStr) -> bool) -> Result<(Paths, Stop), Error> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .map_err(|errno| Error::Open { reason: errno.into() })?;
        let (stop, held) = io::pipe().map_err(|reason| Error::Open { reason })?;
        let roots = paths.iter().map(Root::new).collect::<Result<_, _>>()?;
        Ok((Paths { inotify, roots, matters, stop }, Stop { _held: held }))
    }

    /// Waits for changes. Returns none after the drop of [`Stop`].
    ///
    /// # Errors
    /// If the kernel refuses the wait.
    pub fn wait(&self) -> Result<Option<Todo>, Error> {
        let timeout = self.retry_after().and_then(|pause| PollTimeout::try_from(pause).ok());
        let mut events = [
            PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.stop.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut events, timeout.unwrap_or(PollTimeout::NONE)) {
            Ok(_) if events[1].any() == Some(true) => Ok(None),
            Ok(ready) => self.take(ready == 0).map(Some),
            Err(Errno::EINTR) => Ok(Some(Todo::default())),
            Err(reason) => Err(Error::Wait { reason }),
        }
    }

    /// Returns the pause after which to look at paths that no event reports, if there are any.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.roots.iter().any(|root| root.retry).then_some(RETRY)
    }

    /// Takes what the events that have arrived report, without waiting: the descriptor is readable
    /// when there are any. `retries` adds the paths that no event reports.
    ///
    /// # Errors
    /// If the kernel refuses to read the events.
    pub fn take(&self, retries: bool) -> Result<Todo, Error> {
        let mut todo = Todo::default();
        let unreported = (0..self.roots.len()).filter(|&root| retries && self.roots[root].retry);
        todo.roots.extend(unreported);
        for _ in 0..COALESCE {
            match self.inotify.read_events() {
                Ok(events) => events.iter().for_each(|event| self.note(event, &mut todo)),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(reason) => return Err(Error::Wait { reason }),
            }
        }
        Ok(todo)
    }

    /// Sets the watches of a path, so that [`Paths::wait`] reports later changes. Call it before
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
    fn new(path: &PathBuf) -> Result<Root, Error> {
        let absolute = std::path::absolute(path)
            .map_err(|reason| Error::Path { path: path.clone(), reason })?;
        let parent = match (absolute.parent(), absolute.file_name()) {
            (Some(parent), Some(name)) => Some((parent.to_owned(), name.to_owned())),
            _ => None,
        };
        Ok(Root {
            path: path.clone(),
            parent,
            parent_watch: None,
            own_watch: None,
            is_directory: false,
            retry: true,
            unwatchable: false,
        })
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
