//! What is done when the server does not answer as it should.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use super::script::{Log, Script, answers, follow};
use crate::source::kubernetes::api_status::{ApiStatus, Incident};
use crate::source::kubernetes::failure::{RequestFailure, innermost};
use crate::source::objects::Kind;

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_where_it_was() {
    // Half an event is none.
    let (script, told) = follow(30, "list 2 a@1; cut 250 +b@4 -a@5; end ^9; watch").await;
    assert_eq!(script.course(), "list 2 4 9");
    assert!(!told.contains(&"-a".to_owned()), "{told:?}");
    assert_eq!(script.restarts(), ["services"; 2]);
}

#[tokio::test(start_paused = true)]
async fn event_of_a_version_that_has_come_is_no_news() {
    // Nobody goes back to an older version but a server that was restored.
    let (script, told) =
        follow(30, "list 2; end +b@4 +b@4; watch +c@5 -b@3; list 6 b@4; watch").await;
    assert_eq!(script.course(), "list 2 4 list 6");
    let place = told.iter().position(|told| told == "+b").unwrap();
    assert_eq!(told[place..], ["+b", "+c", "+b, services=b"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_means_a_new_list() {
    for gone in ["410", "watch !410"] {
        let (script, told) =
            follow(30, &format!("list 2 a@1 b@2; {gone}; list 7 b@2; watch")).await;
        assert_eq!(script.course(), "list 2 list 7");
        assert_eq!(told.last().unwrap(), "+b, services=b");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_asked_to_wait_waits() {
    // No server makes the agent wait for a day.
    let (script, _) = follow(300, "list 2; 429 7; 503 soon; 429 86400; watch").await;
    assert!(script.course().starts_with("list 2 2 2 2"));
    let pauses = script.pauses();
    for (i, seconds) in [(1, 7..15), (2, 0..1), (3, 120..241)] {
        assert!(seconds.contains(&pauses[i].as_secs()), "{pauses:?}");
    }
}

/// All nodes get the same answer when the server starts. Where it asks for no pause, there is none.
#[tokio::test(start_paused = true)]
async fn nodes_that_have_to_wait_for_the_same_time_come_back_one_after_the_other() {
    let mut pauses = Vec::new();
    for _ in 0..100 {
        let (script, _) = follow(30, "429 10; list 2; watch").await;
        pauses.push(script.pauses()[0].as_millis());
        let first = |resource| script.requests(resource)[0].at;
        assert_eq!(first("endpointslices"), first("services"), "the first list waits for nothing");
    }
    pauses.sort_unstable();
    assert!(pauses[0] >= 10_000 && pauses[99] <= 20_001, "{pauses:?}");
    assert!(pauses[25] < 14_500 && pauses[75] > 15_500, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_told_once_and_pauses_grow() {
    let log = Log::collect();
    let resources = ["services", "endpointslices", "nodes", "servicecidrs"];
    let outage = |resource| (resource, answers("list 2; 6*503; watch"));
    let script = Script::new(resources.map(outage));
    let told = script.run(Duration::from_secs(60)).await;
    assert_eq!(told.len(), 5, "{told:?}");
    for resource in resources {
        assert_eq!(script.requests(resource).len(), 8);
    }
    // The others may come back early because one has got through.
    let pauses = script.pauses();
    assert!(pauses[2] < pauses[4] && pauses[4] < Duration::from_secs(10), "{pauses:?}");
    assert_eq!(log.lines("refuses to list or watch: because (503)").len(), 2);
    assert_eq!(log.lines(" WARN ").len(), 1);
    assert_eq!(log.lines("answers again").len(), 1);
}

#[test]
fn an_outage_with_ever_new_reasons_is_told_a_few_times() {
    let log = Log::collect();
    let (sender, incidents) = mpsc::channel();
    let status = ApiStatus::new(move |incident| sender.send(incident).unwrap());
    for n in 0..100 {
        status.lost(Kind::Service, &RequestFailure::Unreachable(format!("reason {n}")), true);
    }
    assert_eq!(log.lines(" WARN ").len(), 16);
    status.well(Kind::Service);
    assert!(
        matches!(incidents.try_iter().last(), Some(Incident::Back(_))),
        "the history has an end"
    );
    // rustls says the time.
    let expired =
        "invalid peer certificate: certificate expired: verification time 1735689600 (UNIX)";
    let expired = innermost(&io::Error::other(expired));
    assert_eq!(expired, "invalid peer certificate: certificate expired");
}

#[tokio::test(start_paused = true)]
async fn pauses_begin_anew_after_a_success() {
    let pauses = follow(60, "list 2; 7*500; end ^3; 500; watch").await.0.pauses();
    assert!(pauses[7] > Duration::from_secs(3), "{pauses:?}");
    assert!(pauses[8..].iter().all(|pause| *pause < Duration::from_secs(1)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn garbage_in_a_watch_is_asked_for_again() {
    let log = Log::collect();
    for garbage in ["<html>", "{\"type\":\"ADDED\"", "\u{0}"] {
        let (script, told) = follow(60, &format!("list 2; watch +a@3 {garbage}; watch +b@4")).await;
        assert_eq!(script.course(), "list 2 3", "{garbage}");
        assert_eq!(told[told.len() - 2..], ["+a", "+b"], "{garbage}");
    }
    assert_eq!(log.lines("invalid response").len(), 2 * 3, "told once, and once that it is over");
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_watch_do_not_cost_the_version() {
    for code in [500, 502, 503, 504, 429, 403, 401] {
        let (script, _) = follow(40 * 31, &format!("list 2; 40*{code}; watch")).await;
        assert!(script.requests("services").len() >= 42, "{code}: {:?}", script.course());
        let course = script.course();
        // The last watch is silent, which is followed by lists.
        let lists = course.split(' ').take(42).filter(|step| *step == "list").count();
        assert_eq!(lists, 1, "{code}: {course}");
    }
}

/// A watch that never gets beyond a version is not the way on.
#[tokio::test(start_paused = true)]
async fn watch_that_fails_again_and_again_is_followed_by_a_list_from_the_cache() {
    for failing in ["watch <html> +b@5", "watch !500", "end", "400", "404", "422"] {
        let (script, told) = follow(100, &format!("list 2; 8*{failing}; list 6 b@5; watch")).await;
        assert_eq!(script.course(), "list 2 2 2 2 2 2 2 2 list 6");
        assert_eq!(script.lists()[1], "resourceVersion=2");
        assert_eq!(told.last().unwrap(), "+b, services=b");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_followed_by_a_list_from_the_cache() {
    for (event, version) in [("", "2"), ("^3", "3")] {
        let (script, _) = follow(300, &format!("list 2; watch {event}; list 4; watch ^5")).await;
        assert!(script.course().starts_with("list 2 list 4"), "{}", script.course());
        assert_eq!(script.lists()[1], format!("resourceVersion={version}"));
        let bookmarks_take = Duration::from_secs(61);
        assert!(script.pauses()[1] > bookmarks_take, "{:?}", script.pauses());
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_was_restored_to_an_older_state_is_followed() {
    let (script, told) = follow(300, "list 9 a@8; watch; new; list 5 b@4; watch +c@6").await;
    assert!(script.course().starts_with("list 9 list list 5"), "{}", script.course());
    assert_eq!(script.lists()[1..3], ["resourceVersion=9", "limit=250"]);
    assert_eq!(told[told.len() - 2..], ["+b, services=b", "+c"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_each_watch_at_once_is_not_asked_all_the_time() {
    let log = Log::collect();
    let requests = follow(300, "list 2; 1000*end").await.0.requests("services").len();
    assert!((10..40).contains(&requests), "{requests} requests in five minutes");
    assert_eq!(log.lines("ended the watch").len(), 1);
}
