//! The state of the screen: what is shown of the model, and what keys change.

use std::cmp::Ordering;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{Model, Row, Totals};

/// The order of the Services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// The highest rate first.
    #[default]
    Rate,
    /// The most connections first.
    Total,
    /// By namespace and name.
    Name,
}

impl Sort {
    /// Returns the word on the screen.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Total => "connections",
            Sort::Name => "name",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Rate => Sort::Total,
            Sort::Total => Sort::Name,
            Sort::Name => Sort::Rate,
        }
    }

    /// Compares two Services. Of equal ones, the name decides.
    #[must_use]
    pub fn compare(self, one: &Row, other: &Row) -> Ordering {
        let by_total = || other.totals.connections.cmp(&one.totals.connections);
        let first = match self {
            Sort::Rate => other.totals.rate.total_cmp(&one.totals.rate).then_with(by_total),
            Sort::Total => by_total(),
            Sort::Name => Ordering::Equal,
        };
        first.then_with(|| one.service.cmp(&other.service))
    }
}

/// The state of the screen.
#[derive(Debug, Default)]
pub struct Screen {
    /// The order of the Services.
    pub sort: Sort,
    /// The text that the names of shown Services contain.
    pub filter: String,
    /// True while keys write the filter.
    pub is_typing: bool,
    /// True if new samples are not shown.
    pub is_paused: bool,
    /// The index of the first visible Service.
    pub first: usize,
    /// The number of visible Services at the last drawing.
    pub page: usize,
    /// Why the last sample failed.
    pub failure: Option<String>,
    /// The shown Services, sorted.
    pub rows: Vec<Row>,
    /// The number of Services without a filter.
    pub all: usize,
    /// The counts of all Services.
    pub total: Totals,
    /// The number of rates in a full history.
    pub capacity: usize,
}

impl Screen {
    /// Shows the current state of the model, unless the screen is paused.
    pub fn show(&mut self, model: &Model) {
        if !self.is_paused {
            self.renew(model);
        }
    }

    fn renew(&mut self, model: &Model) {
        let wanted = |row: &&Row| row.service.contains(&*self.filter);
        self.rows = model.rows().filter(wanted).cloned().collect();
        self.all = model.rows().count();
        self.total = model.total().clone();
        self.capacity = model.capacity();
        self.sort();
    }

    fn sort(&mut self) {
        let sort = self.sort;
        self.rows.sort_by(|one, other| sort.compare(one, other));
        self.scroll(0);
    }

    /// Handles a key. Returns false if the command ends.
    #[must_use]
    pub fn key(&mut self, key: KeyEvent, model: &Model) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return !matches!(key.code, KeyCode::Char('c' | 'd'));
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => {
                    self.is_typing = false;
                    self.filter.clear();
                }
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(letter) => self.filter.push(letter),
                _ => return true,
            }
            self.first = 0;
            self.renew(model);
            return true;
        }
        let page = isize::try_from(self.page.max(1)).unwrap_or(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.first = 0;
                self.sort();
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                self.show(model);
            }
            KeyCode::Up => self.scroll(-1),
            KeyCode::Down => self.scroll(1),
            KeyCode::PageUp => self.scroll(-page),
            KeyCode::PageDown => self.scroll(page),
            KeyCode::Home => self.scroll(isize::MIN),
            KeyCode::End => self.scroll(isize::MAX),
            _ => {}
        }
        true
    }

    /// Scrolls, as far as there are Services.
    fn scroll(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(self.page.max(1));
        self.first = self.first.saturating_add_signed(by).min(last);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::model::tests::sample;
    use super::*;

    fn model() -> Model {
        let mut model = Model::new(Duration::from_secs(1));
        model.add(&sample(&[("shop/a", 0), ("shop/b", 9), ("web/c", 3)]), Duration::ZERO);
        model.add(&sample(&[("shop/a", 2), ("shop/b", 9), ("web/c", 8)]), Duration::from_secs(1));
        model
    }

    fn press(screen: &mut Screen, model: &Model, codes: &[KeyCode]) {
        for code in codes {
            assert!(screen.key(KeyEvent::from(*code), model), "{code:?} ends the command");
        }
    }

    fn names(screen: &Screen) -> Vec<&str> {
        screen.rows.iter().map(|row| &*row.service).collect()
    }

    #[test]
    fn keys_sort_and_filter() {
        let model = model();
        let mut screen = Screen::default();
        screen.show(&model);
        assert_eq!(names(&screen), ["web/c", "shop/a", "shop/b"]);
        press(&mut screen, &model, &[KeyCode::Char('s')]);
        assert_eq!(names(&screen), ["shop/b", "web/c", "shop/a"]);
        press(&mut screen, &model, &[KeyCode::Char('s')]);
        assert_eq!(names(&screen), ["shop/a", "shop/b", "web/c"]);
        press(&mut screen, &model, &['/', 's', 'h', 'q'].map(KeyCode::Char));
        assert!(names(&screen).is_empty() && screen.is_typing);
        press(&mut screen, &model, &[KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!((names(&screen), screen.is_typing), (vec!["shop/a", "shop/b"], false));
        press(&mut screen, &model, &[KeyCode::Char('/'), KeyCode::Esc]);
        assert_eq!((names(&screen).len(), screen.all), (3, 3));
    }

    #[test]
    fn paused_screen_keeps_its_rows() {
        let mut model = model();
        let mut screen = Screen::default();
        screen.show(&model);
        press(&mut screen, &model, &[KeyCode::Char('p')]);
        model.add(&sample(&[("shop/a", 2)]), Duration::from_secs(1));
        screen.show(&model);
        assert_eq!(names(&screen).len(), 3);
        press(&mut screen, &model, &[KeyCode::Char('p')]);
        assert_eq!(names(&screen), ["shop/a"]);
    }

    #[test]
    fn scrolling_ends_with_the_services() {
        let model = model();
        let mut screen = Screen { page: 2, ..Screen::default() };
        screen.show(&model);
        let keys = [
            (KeyCode::Down, 1),
            (KeyCode::Down, 1),
            (KeyCode::PageUp, 0),
            (KeyCode::Up, 0),
            (KeyCode::PageDown, 1),
            (KeyCode::Home, 0),
            (KeyCode::End, 1),
        ];
        for (key, first) in keys {
            press(&mut screen, &model, &[key]);
            assert_eq!(screen.first, first, "{key:?}");
        }
    }

    #[test]
    fn q_and_ctrl_c_end_the_command() {
        let model = model();
        let ends = |screen: &mut Screen, key: KeyEvent| !screen.key(key, &model);
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let mut screen = Screen::default();
        assert!(ends(&mut screen, KeyEvent::from(KeyCode::Char('q'))));
        assert!(ends(&mut screen, ctrl_c));
        press(&mut screen, &model, &[KeyCode::Char('/'), KeyCode::Char('q')]);
        assert!(ends(&mut screen, ctrl_c));
    }
}
