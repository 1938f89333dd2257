//! Aligned tables the way kubectl prints them: upper-case headers, three spaces between the columns, no lines. Where that is too
//! wide for the terminal, two spaces.

use crate::printer::printable;

/// Spaces between two columns.
const GAP: usize = 3;

/// The same, where lines would be longer than the terminal is wide.
const NARROW_GAP: usize = 2;

/// A table that is filled row by row and rendered once.
#[derive(Clone, Debug, Default)]
pub struct Table {
    headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column headers, shown in upper case.
    #[must_use]
    pub fn new<S: AsRef<str>>(headers: impl IntoIterator<Item = S>) -> Self {
        Self {
            headers: headers
                .into_iter()
                .map(|header| header.as_ref().to_uppercase())
                .collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. A cell that is empty or missing is shown as `<none>`; cells beyond the headers are not shown.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Self {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }

    /// Whether no row was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, each line ended by a newline and without spaces at its end.
    ///
    /// `width` is that of the terminal in columns: where lines would be longer, the columns move together, and then the last
    /// column is cut so that lines do not wrap, but not below its header's width. Without it (a pipe) nothing is cut.
    #[must_use]
    pub fn render(&self, width: Option<usize>) -> String {
        let last = self.headers.len().saturating_sub(1);
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| self.shown(row)).collect();
        let mut widths: Vec<usize> = self
            .headers
            .iter()
            .map(|header| console::measure_text_width(header))
            .collect();
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(console::measure_text_width(cell));
            }
        }
        let whole = widths.iter().sum::<usize>() + last * GAP;
        let gap = if width.is_some_and(|width| whole > width) {
            NARROW_GAP
        } else {
            GAP
        };
        let before: usize = widths.iter().take(last).map(|width| width + gap).sum();
        let room = width.map(|width| {
            let header = self
                .headers
                .last()
                .map_or(0, |header| console::measure_text_width(header));
            width.saturating_sub(before).max(header)
        });

        let mut text = String::new();
        for row in std::iter::once(&self.headers).chain(&rows) {
            let mut line = String::new();
            for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if index == last {
                    match room {
                        Some(room) => line.push_str(&console::truncate_str(cell, room, "…")),
                        None => line.push_str(cell),
                    }
                } else {
                    line.push_str(&console::pad_str(cell, width + gap, console::Alignment::Left, None));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn shown(&self, row: &[String]) -> Vec<String> {
        (0..self.headers.len())
            .map(|index| match row.get(index).map(|cell| cell.trim()) {
                None | Some("") => "<none>".to_owned(),
                Some(cell) => printable(cell).split(['\n', '\t']).collect::<Vec<_>>().join(" "),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["node", "component", "message"]);
        table
            .row(["cp-1", "kube-apiserver", "ready"])
            .row(["control-plane-2", "", "two\nlines"])
            .row(["ü-3"]);
        table
    }

    #[test]
    fn columns_are_aligned_and_empty_cells_are_named() {
        assert_eq!(
            table().render(None),
            "NODE              COMPONENT        MESSAGE\n\
             cp-1              kube-apiserver   ready\n\
             control-plane-2   <none>           two lines\n\
             ü-3               <none>           <none>\n"
        );
    }

    #[test]
    fn the_last_column_is_cut_to_the_terminal_but_not_below_its_header() {
        let mut table = Table::new(["a", "message"]);
        table.row(["1", "a very long message"]);
        assert_eq!(table.render(Some(15)), "A  MESSAGE\n1  a very long…\n");
        assert_eq!(table.render(Some(1)), "A  MESSAGE\n1  a very…\n");
        assert_eq!(table.render(Some(80)), "A   MESSAGE\n1   a very long message\n");
    }

    #[test]
    fn columns_move_together_before_anything_is_cut() {
        let mut table = Table::new(["node", "component", "message"]);
        table.row(["cp-1", "kube-apiserver", "running"]);
        let apart = "NODE   COMPONENT        MESSAGE\ncp-1   kube-apiserver   running\n";
        let together = "NODE  COMPONENT       MESSAGE\ncp-1  kube-apiserver  running\n";
        for (width, expected) in [
            (None, apart),
            (Some(31), apart),
            (Some(30), together),
            (Some(29), together),
        ] {
            assert_eq!(table.render(width), expected, "{width:?}");
        }
    }

    #[test]
    fn wide_characters_count_as_two_columns() {
        let mut table = Table::new(["a", "b"]);
        table.row(["日本", "x"]).row(["abcd", "y"]);
        assert_eq!(table.render(None), "A      B\n日本   x\nabcd   y\n");
    }

    #[test]
    fn escape_sequences_from_a_cluster_are_defused() {
        let mut table = Table::new(["a"]);
        table.row(["\u{1b}[2Jgone"]);
        assert!(!table.render(None).contains('\u{1b}'));
    }

    #[test]
    fn without_rows_only_headers_are_shown() {
        let table = Table::new(["a", "b"]);
        assert!(table.is_empty());
        assert_eq!(table.render(Some(80)), "A   B\n");
        assert_eq!(Table::default().render(None), "\n");
    }
}
