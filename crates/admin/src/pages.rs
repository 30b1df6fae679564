//! The pages and their content.

use crate::http::listener::Site;
use crate::http::request::PageRequest;
use crate::http::response::PageResponse;
use crate::metrics;
use crate::outlook::Outlook;
use crate::watch::JobWatch;
use std::sync::Arc;

/// A file of the live page.
struct Asset {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const fn asset(path: &'static str, kind: &'static str, text: &'static str) -> Asset {
    Asset { path, kind, text }
}

/// The live page.
const ASSETS: [Asset; 10] = [
    asset("/", HTML, include_str!("../assets/index.html")),
    asset("/page.css", CSS, include_str!("../assets/page.css")),
    asset("/icon.svg", SVG, include_str!("../assets/icon.svg")),
    asset("/page.js", JS, include_str!("../assets/page.js")),
    asset("/dom.js", JS, include_str!("../assets/dom.js")),
    asset("/map.js", JS, include_str!("../assets/map.js")),
    asset("/news.js", JS, include_str!("../assets/news.js")),
    asset("/parts.js", JS, include_str!("../assets/parts.js")),
    asset("/picture.js", JS, include_str!("../assets/picture.js")),
    asset("/words.js", JS, include_str!("../assets/words.js")),
];

/// The pages of a process.
pub(crate) struct AdminPages {
    pub(crate) outlook: Arc<Outlook>,
}

impl Site for AdminPages {
    fn answer(&self, request: &PageRequest) -> PageResponse {
        match request.path.as_str() {
            "/healthz" => PageResponse::line(200, "ok"),
            "/readyz" => self.readiness(),
            "/metrics" => metrics::response(&self.outlook, &request.accept),
            "/job.json" => match request.field("job") {
                None | Some("") => job_page(self.outlook.watch()),
                Some(job) => self.job(job),
            },
            path => match ASSETS.iter().find(|asset| asset.path == path) {
                Some(asset) => PageResponse::page(asset.kind, asset.text.as_bytes()),
                None => PageResponse::line(404, "the pages are /, /job.json, /metrics, /healthz and /readyz"),
            },
        }
    }

    fn is_open(&self, path: &str) -> bool {
        !matches!(path, "/metrics" | "/job.json")
    }
}

impl AdminPages {
    /// The job of this number, as `/job.json` writes numbers.
    fn job(&self, job: &str) -> PageResponse {
        let watch = u64::from_str_radix(job, 16).ok().and_then(|job| self.outlook.watch_of(job));
        match watch {
            Some(watch) => job_page(&watch),
            None => PageResponse::line(
                404,
                "this process is not in that job, does not serve it, or already shows 8 others: /job.json lists its jobs",
            ),
        }
    }

    /// Whether the process is ready: it is in a job that can continue, or it serves.
    fn readiness(&self) -> PageResponse {
        if let Some(server) = self.outlook.server() {
            return match server.is_serving() {
                true => PageResponse::line(200, "serving"),
                false => PageResponse::line(503, "ending"),
            };
        }
        let Some(view) = self.outlook.present() else {
            return PageResponse::line(503, "not in a job");
        };
        let place = self.outlook.look().into_iter().find(|place| place.view.is_same(&view));
        let lost = place.and_then(|place| place.known?.figures.whole.as_ref()?.lost.clone());
        match lost {
            None => PageResponse::line(200, "in a job"),
            Some(why) => PageResponse::line(503, &format!("the job cannot continue: {why}")),
        }
    }
}

fn job_page(watch: &Arc<JobWatch>) -> PageResponse {
    match watch.job() {
        Some(text) => PageResponse::page("application/json", text.as_bytes()),
        None => PageResponse::line(503, "this process is not in a job, or its members have not answered yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn all_files_of_the_page_are_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
        let mut files: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .map(|name| if name == "index.html" { "/".to_owned() } else { format!("/{name}") })
            .collect();
        files.sort();
        let mut served: Vec<&str> = ASSETS.iter().map(|asset| asset.path).collect();
        served.sort_unstable();
        assert_eq!(served, files);
    }
}
