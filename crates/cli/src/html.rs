//! The frame of a page that is one file, and loads nothing.

use herringbone::svg::escaped;

const STYLE: &str = include_str!("html/assets/page.css");

/// What a page is made of.
pub(crate) struct Parts<'a> {
    pub(crate) title: &'a str,
    /// Rules in addition to the common ones.
    pub(crate) style: &'a str,
    /// What `main` has, in HTML.
    pub(crate) main: &'a str,
    pub(crate) script: &'a str,
}

/// The whole file. Its policy forbids to load anything.
pub(crate) fn page(parts: &Parts<'_>) -> String {
    let Parts { title, style, main, script } = parts;
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{style}</style></head>\n<body>\n<main>\n{main}</main>\n\
         <script>\n{script}</script>\n</body></html>\n"
    )
}
