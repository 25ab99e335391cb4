//! Noticing that files change.
//!
//! A directory is watched itself and through its parent, so that it can be replaced as a whole (a
//! symbolic link to a new release, say); a single file is watched through its parent. An event only
//! says where to look: what counts is what is there then, so events may be late, doubled or out of
//! order. `IN_MODIFY` is not asked for: a file counts when its writer closes it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use super::scan::{Scanner, is_manifest};
use super::{Error, Round};

/// How often a path that is gone, or that cannot be watched, is looked at again.
const RETRY_MILLISECONDS: u16 = 1000;

/// How many times the queue of events is emptied before what it says is done. Each time is up to 4 kB
/// of events; someone who writes all the time must not keep us from doing anything.
const COALESCE: usize = 64;

/// The same for every directory, because the kernel has one mask per directory however often it is
/// watched.
fn mask() -> AddWatchFlags {
    AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR
}

/// Reads manifests and watches them.
pub struct Watcher {
    scanner: Scanner,
    inotify: Inotify,
    roots: Vec<Root>,
}

/// How a path is watched.
struct Root {
    /// The directory that it is in and its name there; none for `/`.
    parent: Option<(PathBuf, OsString)>,
    parent_watch: Option<WatchDescriptor>,
    /// The watch of the path itself, if it is a directory.
    own_watch: Option<WatchDescriptor>,
    /// It has to be looked at again, because no event would tell.
    retry: bool,
    /// The kernel refused to watch it, and we have said so.
    unwatchable: bool,
}

/// Where to look.
#[derive(Default)]
struct Todo {
    /// Paths to look at as a whole.
    roots: BTreeSet<usize>,
    /// Files in directories. True if the file is complete; otherwise only whether it is still there
    /// matters.
    files: BTreeMap<(usize, OsString), bool>,
}

impl Watcher {
    /// Prepares to read the manifests at these paths, files or directories. Nothing is read yet.
    pub fn new(paths: &[PathBuf], node_name: &str) -> Result<Watcher, Error> {
        let mut scanner = Scanner::new(paths, node_name)?;
        scanner.log_problems();
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .map_err(|source| Error::Inotify { source })?;
        let root = |path: &PathBuf| {
            let path_error = |source| Error::Path { path: path.clone(), source };
            let absolute = std::path::absolute(path).map_err(path_error)?;
            let parent = match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => Some((parent.to_owned(), name.to_owned())),
                _ => None,
            };
            Ok(Root {
                parent,
                parent_watch: None,
                own_watch: None,
                retry: true,
                unwatchable: false,
            })
        };
        let roots = paths.iter().map(root).collect::<Result<_, _>>()?;
        Ok(Watcher { scanner, inotify, roots })
    }

    /// Reads everything, hands it to `sink`, then goes on with each change until `sink` says
    /// `Break`. Blocks: it wants a thread of its own, so that reading a large file delays nobody.
    pub fn run(mut self, mut sink: impl FnMut(Round) -> ControlFlow<()>) -> Result<(), Error> {
        for root in 0..self.roots.len() {
            self.look_at(root);
        }
        let first = self.scanner.first_round();
        let mut problems = first.problems.clone();
        let mut flow = sink(first);
        while flow.is_continue() {
            let todo = self.wait()?;
            self.work(todo);
            let round = self.scanner.round();
            if !round.changes.is_empty() || !Arc::ptr_eq(&round.problems, &problems) {
                problems = round.problems.clone();
                flow = sink(round);
            }
        }
        Ok(())
    }

    /// Waits until there is something to look at.
    fn wait(&self) -> Result<Todo, Error> {
        let again = self.roots.iter().any(|root| root.retry);
        let timeout = if again { PollTimeout::from(RETRY_MILLISECONDS) } else { PollTimeout::NONE };
        let mut todo = Todo::default();
        match poll(&mut [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => todo.roots.extend((0..self.roots.len()).filter(|&r| self.roots[r].retry)),
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(todo),
            Err(source) => return Err(Error::Wait { source }),
        }
        for _ in 0..COALESCE {
            match self.inotify.read_events() {
                Ok(events) => events.iter().for_each(|event| self.note(event, &mut todo)),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(source) => return Err(Error::Wait { source }),
            }
        }
        Ok(todo)
    }

    /// Notes where an event says to look.
    fn note(&self, event: &InotifyEvent, todo: &mut Todo) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            tracing::warn!("too many changes at once to be told of each; looking at all manifests");
            todo.roots.extend(0..self.roots.len());
        }
        for (number, root) in self.roots.iter().enumerate() {
            if root.own_watch == Some(event.wd) {
                self.note_in_directory(number, event, todo);
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
        } else if is_manifest(name) {
            let complete = is_complete(event, self.scanner.root(root));
            *todo.files.entry((root, name.clone())).or_default() |= complete;
        }
    }

    fn work(&mut self, todo: Todo) {
        for &root in &todo.roots {
            self.look_at(root);
        }
        for ((root, name), complete) in todo.files {
            let seen = todo.roots.contains(&root);
            if !seen && (complete || !self.scanner.exists(root, &name)) {
                self.scanner.look_at(root, &name);
            }
        }
    }

    /// Looks at a path as a whole. The watches come first: what changes after that makes an event.
    fn look_at(&mut self, number: usize) {
        let path = self.scanner.root(number).to_owned();
        let root = &mut self.roots[number];
        if let Some((parent, _)) = &root.parent {
            root.parent_watch = self.inotify.add_watch(parent, mask()).ok();
        }
        let before = root.own_watch.take();
        let watched = match self.inotify.add_watch(&path, mask()) {
            Ok(watch) => {
                root.own_watch = Some(watch);
                true
            }
            Err(Errno::ENOTDIR) => root.parent_watch.is_some(),
            Err(Errno::ENOENT) => false,
            Err(error) => {
                if !std::mem::replace(&mut root.unwatchable, true) {
                    tracing::warn!(
                        path = %path.display(),
                        "cannot be watched: {error}; looking at it every second instead; if there \
                         are too many watches, raise the sysctl fs.inotify.max_user_watches"
                    );
                }
                false
            }
        };
        if let Some(before) = before
            && !self.roots.iter().any(|root| root.watches().any(|watch| watch == before))
        {
            // It fails if the directory is gone, and then there is nothing to do.
            let _ = self.inotify.rm_watch(before);
        }
        let good = self.scanner.scan(number);
        self.roots[number].retry = !watched || !good;
    }
}

impl Root {
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
                self.own_watch.is_some()
                    || event.mask.contains(AddWatchFlags::IN_ISDIR)
                    || event
                        .mask
                        .intersects(AddWatchFlags::IN_MOVED_FROM | AddWatchFlags::IN_DELETE)
                    || is_complete(event, parent)
            }
            Some(name) => self.own_watch.is_none() && is_volume_link(name, event),
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
