//! Draws the screen.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Sparkline, Table};

use super::{Row, Screen};
use crate::escape;

/// The height of the graph of all Services.
const GRAPH_HEIGHT: u16 = 3;
/// The height of the head of the table.
const HEAD_HEIGHT: u16 = 1;
/// The widths of the columns of numbers.
const RATE_WIDTH: u16 = 10;
const TOTAL_WIDTH: u16 = 12;

/// Draws the screen, and notes the number of visible Services.
pub fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let [top, graph, table, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(GRAPH_HEIGHT),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    screen.page = usize::from(table.height.saturating_sub(HEAD_HEIGHT));
    frame.render_widget(Paragraph::new(top_line(screen)), top);
    draw_total(frame, screen, graph);
    draw_table(frame, screen, table);
    frame.render_widget(Paragraph::new(bottom_line(screen)), bottom);
}

fn top_line(screen: &Screen) -> Line<'static> {
    let mut spans = vec![
        Span::from("shunt top").bold(),
        Span::from(format!(
            "  {:.1} new connections a second, {} Services, by {}",
            screen.total.rate,
            screen.all,
            screen.sort.as_str()
        )),
    ];
    if !screen.filter.is_empty() {
        spans.push(Span::from(format!(", {} contain \"{}\"", screen.rows.len(), screen.filter)));
    }
    if screen.is_paused {
        spans.push(Span::from("  PAUSED").fg(Color::Yellow).bold());
    }
    Line::from(spans)
}

fn bottom_line(screen: &Screen) -> Line<'static> {
    if screen.is_typing {
        return Line::from(format!("filter: {}_  (Enter keeps it, Esc clears it)", screen.filter));
    }
    if let Some(failure) = &screen.failure {
        return Line::from(format!("cannot read the counters: {failure}")).fg(Color::Red);
    }
    Line::from("q quit  s sort  / filter  p pause  ↑ ↓ PgUp PgDn scroll").dim()
}

fn draw_total(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let history = last(&screen.total.history, usize::from(area.width), screen.capacity);
    // The widget draws whole numbers.
    let bars: Vec<u64> = history.iter().map(|rate| (rate * 100.0) as u64).collect();
    let sparkline = Sparkline::default().data(&bars).style(Style::new().fg(Color::Cyan));
    frame.render_widget(sparkline, area);
}

fn draw_table(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let visible = screen.rows.iter().skip(screen.first).take(screen.page);
    let name_width = (area.width / 2).saturating_sub(RATE_WIDTH).max(16);
    let used = name_width + RATE_WIDTH + TOTAL_WIDTH + 3;
    let graph_width = area.width.saturating_sub(used);
    let rows = visible.map(|row| table_row(row, usize::from(graph_width), screen.capacity));
    let right = |text: &'static str| Cell::from(Line::from(text).right_aligned());
    let head = TableRow::new([
        Cell::from("SERVICE"),
        right("RATE"),
        right("CONNECTIONS"),
        Cell::from("LAST MINUTE, EACH BY ITS OWN SCALE"),
    ]);
    let widths = [
        Constraint::Length(name_width),
        Constraint::Length(RATE_WIDTH),
        Constraint::Length(TOTAL_WIDTH),
        Constraint::Length(graph_width),
    ];
    let head = head.style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn table_row(row: &Row, width: usize, capacity: usize) -> TableRow<'static> {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let graph = graph(&last(&row.totals.history, width, capacity));
    let cells = [
        Cell::from(escape::line(&row.service).into_owned()),
        right(format!("{:.1}/s", row.totals.rate)),
        right(row.totals.connections.to_string()),
        Cell::from(graph).style(Style::new().fg(Color::Cyan)),
    ];
    let style = if row.totals.rate > 0.0 { Style::new() } else { Style::new().dim() };
    TableRow::new(cells).style(style)
}

/// Returns the rates of the last minute in `width` columns, oldest first. If there are more rates
/// than columns, each column has the highest of its rates.
fn last(history: &VecDeque<f64>, width: usize, capacity: usize) -> Vec<f64> {
    let each = capacity.div_ceil(width.max(1)).max(1);
    let mut columns: Vec<f64> = Vec::with_capacity(history.len() / each + 1);
    // From the newest, so that the last column is never an older one.
    let newest: Vec<f64> = history.iter().rev().copied().collect();
    for rates in newest.chunks(each).take(width) {
        columns.push(rates.iter().copied().fold(0.0, f64::max));
    }
    columns.reverse();
    columns
}

/// Writes rates as blocks of eight heights, relative to the highest one.
fn graph(rates: &[f64]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let block = |rate: &f64| {
        if *rate <= 0.0 {
            return ' ';
        }
        let height = (rate / highest * BLOCKS.len() as f64).ceil() as usize;
        BLOCKS.get(height.saturating_sub(1)).copied().unwrap_or('█')
    };
    rates.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::tests::sample;
    use super::*;
    use crate::top::Model;

    fn lines(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, screen)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
        let rows = cells.chunks(usize::from(width));
        rows.map(|row| row.concat().trim_end().to_owned()).collect()
    }

    fn screen() -> Screen {
        let mut model = Model::new(Duration::from_secs(1));
        for n in 0..5 {
            let counters = [("shop/a:http", n * n), ("shop/b", 7), ("web/c", 20 * n)];
            model.add(&sample(&counters), Duration::from_secs(1));
        }
        let mut screen = Screen::default();
        screen.show(&model);
        screen
    }

    #[test]
    fn rows_have_rate_connections_and_graph() {
        let lines = lines(&mut screen(), 80, 9);
        assert_eq!(lines[0], "shunt top  27.0 new connections a second, 3 Services, by rate");
        assert_eq!(lines[3], "████");
        let head =
            "SERVICE                              RATE  CONNECTIONS LAST MINUTE, EACH BY ITS";
        assert_eq!(lines[4], head);
        assert_eq!(lines[5], "web/c                              20.0/s           80 ██");
        assert_eq!(lines[6], "shop/a                              7.0/s           16 ▂█");
        assert_eq!(lines[7], "shop/b                              0.0/s            7");
        assert_eq!(lines[8], "q quit  s sort  / filter  p pause  ↑ ↓ PgUp PgDn scroll");
    }

    #[test]
    fn state_of_the_screen_is_visible() {
        let mut screen = screen();
        screen.is_paused = true;
        screen.filter = "o".to_owned();
        screen.failure = Some("no table".to_owned());
        let drawn = lines(&mut screen, 100, 8);
        assert!(drawn[0].ends_with(", by rate, 3 contain \"o\"  PAUSED"), "{drawn:#?}");
        assert_eq!(drawn[7], "cannot read the counters: no table");
        screen.is_typing = true;
        let drawn = lines(&mut screen, 100, 8);
        assert_eq!(drawn[7], "filter: o_  (Enter keeps it, Esc clears it)");
    }

    #[test]
    fn screen_shows_a_part_of_the_rows() {
        let mut screen = screen();
        screen.first = 1;
        let drawn = lines(&mut screen, 80, 8);
        assert_eq!(screen.page, 2);
        assert!(drawn[5].starts_with("shop/a ") && drawn[6].starts_with("shop/b "), "{drawn:#?}");
        // Nothing fits, nothing fails.
        for (width, height) in [(1, 1), (10, 3), (20, 5)] {
            assert_eq!(lines(&mut screen, width, height).len(), usize::from(height));
        }
    }

    #[test]
    fn columns_have_the_highest_of_their_rates() {
        let history = VecDeque::from([1.0, 5.0, 2.0, 0.0, 3.0]);
        assert_eq!(last(&history, 60, 60), [1.0, 5.0, 2.0, 0.0, 3.0]);
        assert_eq!(last(&history, 30, 60), [1.0, 5.0, 3.0]);
        assert_eq!(last(&history, 2, 2), [0.0, 3.0]);
        assert_eq!(graph(&[0.0, 1.0, 4.0, 8.0]), " ▁▄█");
        assert_eq!(graph(&[0.0, 0.0]), "  ");
    }
}
