//! Authorization: what the ClusterRole of the chart allows, and nothing else. Pure.

use crate::role::Role;

use super::request::{Request, Target};
use super::status::Refusal;

/// Paths that are about no resource, and that every user may ask for.
const PUBLIC: [&str; 3] = ["/api", "/apis", "/version"];

/// Refuses what the role does not allow, in the words of the API server.
pub(super) fn authorize(role: &Role, request: &Request) -> Result<(), Refusal> {
    let (user, verb) = (&role.user, request.verb.as_str());
    let forbidden = |message: String| Err(Refusal::new(403, "Forbidden", message));
    let Some(target) = &request.target else {
        let path = &request.path;
        let is_public = |public: &&str| {
            path.strip_prefix(public).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if PUBLIC.iter().any(is_public) {
            return Ok(());
        }
        return forbidden(format!("forbidden: User {user:?} cannot get path {path:?}"));
    };
    let Target { group, resource, namespace, name, .. } = target;
    if role.allows(verb, group, resource) {
        return Ok(());
    }
    let what = target.qualified();
    let object = if name.is_empty() { what } else { format!("{what} {name:?}") };
    let scope = match namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    forbidden(format!(
        "{object} is forbidden: User {user:?} cannot {verb} resource {resource:?} in API group \
         {group:?} {scope}"
    ))
}
