//! What is done when the server does not answer as it should.

use std::time::Duration;

use super::script::{Answer, Log, Script, added, bookmark, deleted, error, service};

#[tokio::test(start_paused = true)]
pub(super) async fn a_watch_goes_on_where_it_was() {
    let event = added(service("b", 4));
    let answers = vec![
        Answer::list(2, &[service("a", 1)]),
        // Half an event is none.
        Answer::cut(&[event.clone(), deleted(service("a", 5))], event.len() + 30),
        Answer::ending(&[bookmark(9)]),
        Answer::watch(&[]),
    ];
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(30)).await;
    assert_eq!(script.course("services"), ["list", "2", "4", "9"]);
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
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(30)).await;
    assert_eq!(script.course("services"), ["list", "2", "4", "list", "6"]);
    let place = told.iter().position(|told| told == "+b").unwrap();
    assert_eq!(told[place..], ["+b", "+c", "+b, services=b"]);
}

#[tokio::test(start_paused = true)]
pub(super) async fn a_version_that_is_too_old_means_a_new_list() {
    for gone in [Answer::status(410), Answer::watch(&[error(410)])] {
        let answers = vec![
            Answer::list(2, &[service("a", 1), service("b", 2)]),
            gone,
            Answer::list(7, &[service("b", 2)]),
            Answer::watch(&[]),
        ];
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(30)).await;
        assert_eq!(script.course("services"), ["list", "2", "list", "7"]);
        assert_eq!(told.last().unwrap(), "+b, services=b");
    }
}

#[tokio::test(start_paused = true)]
pub(super) async fn who_is_asked_to_wait_waits() {
    let answers = vec![
        Answer::list(2, &[]),
        Answer::retry_after(429, "7"),
        Answer::retry_after(503, "soon"),
        // No server makes the agent wait for a day.
        Answer::retry_after(429, "86400"),
        Answer::watch(&[]),
    ];
    let script = Script::new([("services", answers)]);
    script.run(Duration::from_secs(300)).await;
    assert_eq!(script.course("services")[..5], ["list", "2", "2", "2", "2"]);
    let requests = script.requests("services");
    let pause = |i: usize| requests[i + 1].0 - requests[i].0;
    let within =
        |i, min, max| (Duration::from_secs(min)..Duration::from_secs(max)).contains(&pause(i));
    assert!(within(1, 7, 15) && within(2, 0, 1) && within(3, 120, 241), "{requests:?}");
}

/// All nodes get the same answer when the server starts. Where it asks for no pause, there is none.
#[tokio::test(start_paused = true)]
async fn nodes_that_have_to_wait_for_the_same_time_come_back_one_after_the_other() {
    let mut pauses = Vec::new();
    for _ in 0..100 {
        let answers =
            vec![Answer::retry_after(429, "10"), Answer::list(2, &[]), Answer::watch(&[])];
        let script = Script::new([("services", answers)]);
        script.run(Duration::from_secs(30)).await;
        let requests = script.requests("services");
        pauses.push((requests[1].0 - requests[0].0).as_millis());
        let others = script.requests("endpointslices");
        assert_eq!(others[0].0, requests[0].0, "the first list waits for nothing");
    }
    pauses.sort_unstable();
    assert!(pauses[0] >= 10_000 && pauses[99] <= 20_001, "{pauses:?}");
    assert!(pauses[25] < 14_500 && pauses[75] > 15_500, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
pub(super) async fn an_outage_is_told_once_and_pauses_grow() {
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
        let requests = script.requests(resource);
        assert_eq!(requests.len(), 8);
        // The others may come back early because one has got through.
        let pauses: Vec<Duration> = requests.windows(2).map(|two| two[1].0 - two[0].0).collect();
        assert!(pauses[2] < pauses[4] && pauses[4] < Duration::from_secs(10), "{pauses:?}");
    }
    assert_eq!(log.lines("refuses to list or watch: because (503)").len(), 2);
    assert_eq!(log.lines(" WARN ").len(), 1);
    assert_eq!(log.lines("answers again").len(), 1);
}

#[tokio::test(start_paused = true)]
pub(super) async fn pauses_begin_anew_after_a_success() {
    let mut answers = vec![Answer::list(2, &[])];
    answers.extend((0..7).map(|_| Answer::status(500)));
    answers.push(Answer::ending(&[bookmark(3)]));
    answers.extend([Answer::status(500), Answer::watch(&[])]);
    let script = Script::new([("services", answers)]);
    script.run(Duration::from_secs(60)).await;
    let requests = script.requests("services");
    let pauses: Vec<Duration> = requests.windows(2).map(|two| two[1].0 - two[0].0).collect();
    assert!(pauses[7] > Duration::from_secs(3), "{pauses:?}");
    assert!(pauses[8..].iter().all(|pause| *pause < Duration::from_secs(1)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
pub(super) async fn garbage_in_a_watch_is_asked_for_again_and_in_the_end_listed() {
    let log = Log::collect();
    for garbage in ["<html>", "{\"type\":\"ADDED\"", r#"{"type":"SURPRISE","object":{}}"#, "\u{0}"]
    {
        let good = added(service("a", 3));
        let bad = || Answer::watch(&[garbage.to_owned(), added(service("b", 5))]);
        let answers = vec![
            Answer::list(2, &[]),
            Answer::watch(&[good, garbage.to_owned()]),
            Answer::watch(&[added(service("b", 4))]),
        ];
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(60)).await;
        assert_eq!(script.course("services"), ["list", "2", "3"], "{garbage}");
        assert_eq!(told[told.len() - 2..], ["+a", "+b"], "{garbage}");

        let mut answers = vec![Answer::list(2, &[])];
        answers.extend((0..8).map(|_| bad()));
        answers.extend([Answer::list(6, &[service("b", 5)]), Answer::watch(&[])]);
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(60)).await;
        assert_eq!(script.course("services")[9..], ["list", "6"], "{garbage}");
        assert_eq!(script.lists("services")[1], "resourceVersion=2", "{garbage}");
        assert_eq!(told.last().unwrap(), "+b, services=b", "{garbage}");
    }
    assert_eq!(log.lines("invalid response").len(), 2 * 8, "told once, and once that it is over");
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_watch_do_not_cost_the_version() {
    for code in [500, 502, 503, 504, 429, 403, 401] {
        let mut answers = vec![Answer::list(2, &[])];
        answers.extend((0..40).map(|_| Answer::status(code)));
        answers.push(Answer::watch(&[]));
        let script = Script::new([("services", answers)]);
        script.run(Duration::from_secs(40 * 31)).await;
        let course = script.course("services");
        assert!(course.len() >= 42, "{code}: {course:?}");
        assert_eq!(script.lists("services").len(), 1, "{code}: {course:?}");
    }
}

/// A watch that never gets beyond a version is not the way on.
#[tokio::test(start_paused = true)]
async fn watch_that_fails_again_and_again_is_followed_by_a_list_from_the_cache() {
    for failing in [
        || Answer::watch(&[error(500)]),
        || Answer::ending(&[]),
        || Answer::status(400),
        || Answer::status(404),
        || Answer::status(422),
    ] {
        let mut answers = vec![Answer::list(2, &[])];
        answers.extend((0..8).map(|_| failing()));
        answers.extend([Answer::list(6, &[service("b", 5)]), Answer::watch(&[])]);
        let script = Script::new([("services", answers)]);
        let told = script.run(Duration::from_secs(100)).await;
        assert_eq!(script.course("services")[8..], ["2", "list", "6"]);
        assert_eq!(script.lists("services")[1], "resourceVersion=2");
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
pub(super) async fn silent_watch_is_reopened_and_then_listed_from_the_cache() {
    for (events, version) in [(vec![], "2"), (vec![bookmark(3)], "3")] {
        let mut answers = vec![Answer::list(2, &[]), Answer::watch(&events)];
        answers.extend([Answer::watch(&[]), Answer::list(4, &[]), Answer::watch(&[])]);
        let script = Script::new([("services", answers)]);
        script.run(Duration::from_secs(300)).await;
        assert_eq!(script.course("services")[..5], ["list", "2", version, "list", "4"]);
        assert_eq!(script.lists("services")[1], format!("resourceVersion={version}"));
        let requests = script.requests("services");
        for i in [1, 2] {
            let pause = requests[i + 1].0 - requests[i].0;
            assert!(pause > Duration::from_secs(61), "bookmarks take a minute: {pause:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn quiet_watch_is_listed_ever_less_often() {
    let mut answers = vec![Answer::list(2, &[])];
    answers.extend(silent(2, &[2, 4, 8, 16, 20, 20]));
    answers.push(Answer::watch(&[]));
    let script = Script::new([("services", answers)]);
    script.run(Duration::from_secs(4 * 3600)).await;
    assert_eq!(script.lists("services")[1..], ["resourceVersion=2"; 6]);
    assert!(script.course("services").len() > 77, "{:?}", script.course("services"));
}

/// Bookmarks that come every few minutes are enough.
#[tokio::test(start_paused = true)]
async fn rare_bookmarks_end_the_lists_of_a_quiet_watch() {
    let mut answers = vec![Answer::list(2, &[])];
    answers.extend(silent(2, &[2, 4]));
    for version in 3..10 {
        answers.extend([Answer::watch(&[bookmark(version)]), Answer::watch(&[])]);
        answers.extend((0..4).map(|_| Answer::watch(&[])));
    }
    let script = Script::new([("services", answers)]);
    script.run(Duration::from_secs(3600)).await;
    assert_eq!(script.lists("services").len(), 3, "{:?}", script.course("services"));
}

/// What a server has can be older only after it was gone.
#[tokio::test(start_paused = true)]
async fn silence_after_an_outage_is_looked_into_soon() {
    let mut answers = vec![Answer::list(2, &[])];
    answers.extend(silent(2, &[2, 4]));
    answers.push(Answer::status(503));
    answers.extend(silent(2, &[2]));
    answers.push(Answer::watch(&[]));
    let script = Script::new([("services", answers)]);
    script.run(Duration::from_secs(1500)).await;
    assert_eq!(script.lists("services").len(), 4, "{:?}", script.course("services"));
}

#[tokio::test(start_paused = true)]
async fn server_that_was_restored_to_an_older_state_is_followed() {
    let mut answers = vec![Answer::list(9, &[service("a", 8)])];
    answers.extend([Answer::watch(&[]), Answer::watch(&[]), Answer::too_new()]);
    answers.extend([Answer::list(5, &[service("b", 4)]), Answer::watch(&[added(service("c", 6))])]);
    let script = Script::new([("services", answers)]);
    let told = script.run(Duration::from_secs(300)).await;
    assert_eq!(script.course("services")[..6], ["list", "9", "9", "list", "list", "5"]);
    assert_eq!(script.lists("services")[1..3], ["resourceVersion=9", "limit=250"]);
    assert_eq!(told[told.len() - 2..], ["+b, services=b", "+c"]);
}

#[tokio::test(start_paused = true)]
pub(super) async fn a_server_that_ends_each_watch_at_once_is_not_asked_all_the_time() {
    let log = Log::collect();
    let watches = (0..1000).map(|_| Answer::ending(&[]));
    let answers = [Answer::list(2, &[])].into_iter().chain(watches).collect();
    let script = Script::new([("services", answers)]);
    script.run(Duration::from_secs(300)).await;
    let requests = script.requests("services").len();
    assert!((10..40).contains(&requests), "{requests} requests in five minutes");
    assert_eq!(log.lines("ends the watch").len(), 1);
}
