//! What is done when the server does not answer as it should.

use std::time::Duration;

use super::script::{Answer, Log, Script, added, bookmark, deleted, error, follow, service};

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_where_it_was() {
    let event = added(service("b", 4));
    let answers = vec![
        Answer::list(2, &[service("a", 1)]),
        // Half an event is none.
        Answer::cut(&[event.clone(), deleted(service("a", 5))], event.len() + 30),
        Answer::ending(&[bookmark(9)]),
        Answer::watch(&[]),
    ];
    let (script, told) = follow("services", 30, answers).await;
    assert_eq!(script.course(), ["list", "2", "4", "9"]);
    assert!(!told.contains(&"-a".to_owned()), "{told:?}");
    assert_eq!(script.restarts(), ["services"; 2]);
}

#[tokio::test(start_paused = true)]
async fn event_of_a_version_that_has_come_is_no_news() {
    let repeated = [added(service("b", 4)), added(service("b", 4))];
    // Nobody goes back to an older version but a server that was restored.
    let older = [added(service("c", 5)), deleted(service("b", 3))];
    let answers = vec![
        Answer::list(2, &[]),
        Answer::ending(&repeated),
        Answer::watch(&older),
        Answer::list(6, &[service("b", 4)]),
        Answer::watch(&[]),
    ];
    let (script, told) = follow("services", 30, answers).await;
    assert_eq!(script.course(), ["list", "2", "4", "list", "6"]);
    let place = told.iter().position(|told| told == "+b").unwrap();
    assert_eq!(told[place..], ["+b", "+c", "+b, services=b"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_means_a_new_list() {
    for gone in [Answer::status(410), Answer::watch(&[error(410)])] {
        let answers = vec![
            Answer::list(2, &[service("a", 1), service("b", 2)]),
            gone,
            Answer::list(7, &[service("b", 2)]),
            Answer::watch(&[]),
        ];
        let (script, told) = follow("services", 30, answers).await;
        assert_eq!(script.course(), ["list", "2", "list", "7"]);
        assert_eq!(told.last().unwrap(), "+b, services=b");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_asked_to_wait_waits() {
    let answers = vec![
        Answer::list(2, &[]),
        Answer::retry_after(429, "7"),
        Answer::retry_after(503, "soon"),
        // No server makes the agent wait for a day.
        Answer::retry_after(429, "86400"),
        Answer::watch(&[]),
    ];
    let (script, _) = follow("services", 300, answers).await;
    assert_eq!(script.course()[..5], ["list", "2", "2", "2", "2"]);
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
        let answers =
            vec![Answer::retry_after(429, "10"), Answer::list(2, &[]), Answer::watch(&[])];
        let (script, _) = follow("services", 30, answers).await;
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
    let outage = || {
        let mut answers = vec![Answer::list(2, &[])];
        answers.extend((0..6).map(|_| Answer::status(503)));
        answers.push(Answer::watch(&[]));
        answers
    };
    let resources = ["services", "endpointslices", "nodes", "servicecidrs"];
    let script = Script::new(resources.map(|resource| (resource, outage())));
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

#[tokio::test(start_paused = true)]
async fn pauses_begin_anew_after_a_success() {
    let mut answers = vec![Answer::list(2, &[])];
    answers.extend((0..7).map(|_| Answer::status(500)));
    answers.push(Answer::ending(&[bookmark(3)]));
    answers.extend([Answer::status(500), Answer::watch(&[])]);
    let pauses = follow("services", 60, answers).await.0.pauses();
    assert!(pauses[7] > Duration::from_secs(3), "{pauses:?}");
    assert!(pauses[8..].iter().all(|pause| *pause < Duration::from_secs(1)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn garbage_in_a_watch_is_asked_for_again() {
    let log = Log::collect();
    for garbage in ["<html>", "{\"type\":\"ADDED\"", "\u{0}"] {
        let answers = vec![
            Answer::list(2, &[]),
            Answer::watch(&[added(service("a", 3)), garbage.to_owned()]),
            Answer::watch(&[added(service("b", 4))]),
        ];
        let (script, told) = follow("services", 60, answers).await;
        assert_eq!(script.course(), ["list", "2", "3"], "{garbage}");
        assert_eq!(told[told.len() - 2..], ["+a", "+b"], "{garbage}");
    }
    assert_eq!(log.lines("invalid response").len(), 2 * 3, "told once, and once that it is over");
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_watch_do_not_cost_the_version() {
    for code in [500, 502, 503, 504, 429, 403, 401] {
        let mut answers = vec![Answer::list(2, &[])];
        answers.extend((0..40).map(|_| Answer::status(code)));
        answers.push(Answer::watch(&[]));
        let (script, _) = follow("services", 40 * 31, answers).await;
        assert!(script.course().len() >= 42, "{code}: {:?}", script.course());
        assert_eq!(script.lists().len(), 1, "{code}: {:?}", script.course());
    }
}

/// A watch that never gets beyond a version is not the way on.
#[tokio::test(start_paused = true)]
async fn watch_that_fails_again_and_again_is_followed_by_a_list_from_the_cache() {
    for failing in [
        || Answer::watch(&["<html>".to_owned(), added(service("b", 5))]),
        || Answer::watch(&[error(500)]),
        || Answer::ending(&[]),
        || Answer::status(400),
        || Answer::status(404),
        || Answer::status(422),
    ] {
        let mut answers = vec![Answer::list(2, &[])];
        answers.extend((0..8).map(|_| failing()));
        answers.extend([Answer::list(6, &[service("b", 5)]), Answer::watch(&[])]);
        let (script, told) = follow("services", 100, answers).await;
        assert_eq!(script.course()[8..], ["2", "list", "6"]);
        assert_eq!(script.lists()[1], "resourceVersion=2");
        assert_eq!(told.last().unwrap(), "+b, services=b");
    }
}

/// Answers of a watch that is silent so often before it is listed again.
fn silent(version: u32, counts: &[usize]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for count in counts {
        answers.extend((0..*count).map(|_| Answer::watch(&[])));
        answers.push(Answer::list(version, &[]));
    }
    answers
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_reopened_and_then_listed_from_the_cache() {
    for (events, version) in [(vec![], "2"), (vec![bookmark(3)], "3")] {
        let mut answers = vec![Answer::list(2, &[]), Answer::watch(&events)];
        answers.extend([Answer::watch(&[]), Answer::list(4, &[]), Answer::watch(&[])]);
        let (script, _) = follow("services", 300, answers).await;
        assert_eq!(script.course()[..5], ["list", "2", version, "list", "4"]);
        assert_eq!(script.lists()[1], format!("resourceVersion={version}"));
        let pauses = script.pauses();
        let bookmarks_take = Duration::from_secs(61);
        assert!(pauses[1..3].iter().all(|pause| *pause > bookmarks_take), "{pauses:?}");
    }
}

/// How many lists there are in this time, of a server that answers with silence.
#[tokio::test(start_paused = true)]
async fn quiet_watch_is_listed_ever_less_often() {
    // Bookmarks that come every few minutes are enough.
    let mut rare = silent(2, &[2, 4]);
    for version in 3..10 {
        rare.push(Answer::watch(&[bookmark(version)]));
        rare.extend((0..5).map(|_| Answer::watch(&[])));
    }
    // What a server has can be older only after it was gone.
    let mut outage = silent(2, &[2, 4]);
    outage.push(Answer::status(503));
    outage.extend(silent(2, &[2]));
    for (answers, seconds, lists) in
        [(silent(2, &[2, 4, 8, 16, 20, 20]), 4 * 3600, 7), (rare, 3600, 3), (outage, 1500, 4)]
    {
        let answers = [Answer::list(2, &[])].into_iter().chain(answers).chain([Answer::watch(&[])]);
        let (script, _) = follow("services", seconds, answers.collect()).await;
        assert_eq!(script.lists()[1..], vec!["resourceVersion=2"; lists - 1]);
        assert!(script.course().len() > 12, "{:?}", script.course());
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_was_restored_to_an_older_state_is_followed() {
    let mut answers = vec![Answer::list(9, &[service("a", 8)])];
    answers.extend([Answer::watch(&[]), Answer::watch(&[]), Answer::too_new()]);
    answers.extend([Answer::list(5, &[service("b", 4)]), Answer::watch(&[added(service("c", 6))])]);
    let (script, told) = follow("services", 300, answers).await;
    assert_eq!(script.course()[..6], ["list", "9", "9", "list", "list", "5"]);
    assert_eq!(script.lists()[1..3], ["resourceVersion=9", "limit=250"]);
    assert_eq!(told[told.len() - 2..], ["+b, services=b", "+c"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_each_watch_at_once_is_not_asked_all_the_time() {
    let log = Log::collect();
    let watches = (0..1000).map(|_| Answer::ending(&[]));
    let answers = [Answer::list(2, &[])].into_iter().chain(watches).collect();
    let requests = follow("services", 300, answers).await.0.requests("services").len();
    assert!((10..40).contains(&requests), "{requests} requests in five minutes");
    assert_eq!(log.lines("ends the watch").len(), 1);
}
