//! Watching paths with inotify.
//!
//! A directory is watched itself and through its parent, so that it can be replaced as a whole (a
//! symbolic link to a new release, say). A file is watched through its parent, where it may be
//! replaced, and itself, since it may be written under another name. An event only says where to
//! look: what counts is what is there then, so events may be late, doubled or out of order.
//! `IN_MODIFY` is not asked for: a file counts when its writer closes it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

/// How often a path that is gone, or that cannot be watched, is looked at again.
const RETRY_MILLISECONDS: u16 = 1000;

/// How many times the queue of events is emptied before what it says is done. Each time is up to 4 kB
/// of events; someone who writes all the time must not keep us from doing anything.
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
        /// The path, as it was given.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The kernel gives us no inotify instance, or no pipe to end the wait.
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

/// Paths that are watched.
pub struct Paths {
    inotify: Inotify,
    roots: Vec<Root>,
    /// Whether a name in a directory is that of a file that matters.
    matters: fn(&OsStr) -> bool,
    stop: PipeReader,
}

/// Ends the wait of [`Paths`] when it is dropped.
#[derive(Debug)]
#[must_use = "it ends the wait when it is dropped"]
pub struct Stop {
    _held: PipeWriter,
}

/// How a path is watched.
struct Root {
    path: PathBuf,
    /// The directory that it is in and its name there; none for `/`.
    parent: Option<(PathBuf, OsString)>,
    parent_watch: Option<WatchDescriptor>,
    /// The watch of the path itself.
    own_watch: Option<WatchDescriptor>,
    is_directory: bool,
    /// It has to be looked at again, because no event would tell.
    retry: bool,
    /// The kernel refused to watch it, and we have said so.
    unwatchable: bool,
}

/// Where to look.
#[derive(Debug, Default)]
pub struct Todo {
    /// Paths to look at as a whole, by their number.
    pub roots: BTreeSet<usize>,
    /// Files in directories. True if the file is complete; otherwise only whether it is still there
    /// matters.
    pub files: BTreeMap<(usize, OsString), bool>,
}

impl Paths {
    /// Prepares to watch these paths, files or directories; of the files in directories those with
    /// names that matter. Nothing is watched before [`Paths::watch`].
    ///
    /// # Errors
    /// If the kernel has no inotify instance for us.
    pub fn new(paths: &[PathBuf], matters: fn(&OsStr) -> bool) -> Result<(Paths, Stop), Error> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .map_err(|errno| Error::Open { reason: errno.into() })?;
        let (stop, held) = io::pipe().map_err(|reason| Error::Open { reason })?;
        let roots = paths.iter().map(Root::new).collect::<Result<_, _>>()?;
        Ok((Paths { inotify, roots, matters, stop }, Stop { _held: held }))
    }

    /// Waits until there is something to look at; none once [`Stop`] was dropped.
    ///
    /// # Errors
    /// If the kernel does not let us wait.
    pub fn wait(&self) -> Result<Option<Todo>, Error> {
        let again = self.roots.iter().any(|root| root.retry);
        let timeout = if again { PollTimeout::from(RETRY_MILLISECONDS) } else { PollTimeout::NONE };
        let mut todo = Todo::default();
        let mut events = [
            PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.stop.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut events, timeout) {
            Ok(0) => todo.roots.extend((0..self.roots.len()).filter(|&r| self.roots[r].retry)),
            Ok(_) if events[1].any() == Some(true) => return Ok(None),
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Some(todo)),
            Err(reason) => return Err(Error::Wait { reason }),
        }
        for _ in 0..COALESCE {
            match self.inotify.read_events() {
                Ok(events) => events.iter().for_each(|event| self.note(event, &mut todo)),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(reason) => return Err(Error::Wait { reason }),
            }
        }
        Ok(Some(todo))
    }

    /// Watches a path as it is now: what changes after that is told by [`Paths::wait`]. To be called
    /// before each look at it. Where no event would tell, it is named every second instead.
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
                // Whoever writes it under this name is seen through the parent, too.
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
            // It fails if the directory is gone, and then there is nothing to do.
            let _ = self.inotify.rm_watch(before);
        }
    }

    /// Has a path named again in a second: what was found there cannot be the last word.
    pub fn look_again(&mut self, number: usize) {
        self.roots[number].retry = true;
    }

    /// Notes where an event says to look.
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

    /// True if something happened in the parent directory that concerns the path.
    fn is_concerned(&self, event: &InotifyEvent) -> bool {
        let Some((parent, own_name)) = &self.parent else {
            return false;
        };
        match &event.name {
            None => true,
            Some(name) if name == own_name => {
                // A directory is not "complete" but there at once.
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

/// Kubernetes updates a mounted ConfigMap by renaming a link `..data` that the visible files lead
/// through. What else it does to names like that would only make us look too early.
fn is_volume_link(name: &OsStr, event: &InotifyEvent) -> bool {
    name.as_encoded_bytes().starts_with(b"..") && event.mask.contains(AddWatchFlags::IN_MOVED_TO)
}

/// True if the file that an event is about has its content. A new file does not until it is closed,
/// unless it is a link to one that exists.
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
