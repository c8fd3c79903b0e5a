//! The page's files, embedded in the program. All except the first have a hash in their names, so that browsers cache
//! them forever.

use std::collections::BTreeMap;

use hyper::body::Bytes;

use crate::token::{hash, hex};

/// A file of the page.
#[derive(Debug, Clone)]
pub(crate) struct PageFile {
    pub content_type: &'static str,
    pub octets: Bytes,
}

/// The files of the page.
#[derive(Debug)]
pub(crate) struct Page {
    pub index: Bytes,
    /// Files by their name below `/assets/`.
    files: BTreeMap<String, PageFile>,
}

const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Files, each after the files that it refers to.
const FILES: [(&str, &str, &[u8]); 15] = [
    ("page.css", CSS, include_bytes!("page/page.css")),
    ("icon.svg", SVG, include_bytes!("page/icon.svg")),
    ("el.js", JAVASCRIPT, include_bytes!("page/el.js")),
    ("format.js", JAVASCRIPT, include_bytes!("page/format.js")),
    ("route.js", JAVASCRIPT, include_bytes!("page/route.js")),
    ("api.js", JAVASCRIPT, include_bytes!("page/api.js")),
    ("ask.js", JAVASCRIPT, include_bytes!("page/ask.js")),
    ("now.js", JAVASCRIPT, include_bytes!("page/now.js")),
    ("queue.js", JAVASCRIPT, include_bytes!("page/queue.js")),
    ("domains.js", JAVASCRIPT, include_bytes!("page/domains.js")),
    ("find.js", JAVASCRIPT, include_bytes!("page/find.js")),
    ("mail.js", JAVASCRIPT, include_bytes!("page/mail.js")),
    ("system.js", JAVASCRIPT, include_bytes!("page/system.js")),
    ("pages.js", JAVASCRIPT, include_bytes!("page/pages.js")),
    ("main.js", JAVASCRIPT, include_bytes!("page/main.js")),
];
const INDEX: &[u8] = include_bytes!("page/index.html");

impl Page {
    /// Inserts each file's hash into its name and into all references.
    pub fn new() -> Self {
        let mut names: Vec<(&str, String)> = Vec::new();
        let mut files = BTreeMap::new();
        for (name, content_type, octets) in FILES {
            let text = named(octets, &names);
            let (stem, ending) = name.split_once('.').expect("a name with an ending");
            let hashed = format!("{stem}.{}.{ending}", &hex(&hash(&text))[..HASH_DIGITS]);
            files.insert(hashed.clone(), PageFile { content_type, octets: text.into() });
            names.push((name, hashed));
        }
        Self { index: named(INDEX, &names).into(), files }
    }

    pub fn file(&self, name: &str) -> Option<&PageFile> {
        self.files.get(name)
    }
}

/// Text of a file with references to other files replaced by their hashed names.
fn named(octets: &[u8], names: &[(&str, String)]) -> String {
    let text = std::str::from_utf8(octets).expect("the page is UTF-8").to_owned();
    names.iter().fold(text, |text, (name, hashed)| {
        text.replace(&format!("\"./{name}\""), &format!("\"./{hashed}\""))
            .replace(&format!("\"/assets/{name}\""), &format!("\"/assets/{hashed}\""))
    })
}

const HASH_DIGITS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> Vec<(&'static str, &'static str)> {
        let files = FILES.iter().map(|(name, _, octets)| (*name, std::str::from_utf8(octets).unwrap()));
        files.chain([("index.html", std::str::from_utf8(INDEX).unwrap())]).collect()
    }

    #[test]
    fn each_file_is_found_by_the_name_that_others_have_for_it() {
        let page = Page::new();
        let all = page.files.values().map(|file| &file.octets).chain([&page.index]);
        let texts: Vec<String> = all.map(|octets| String::from_utf8(octets.to_vec()).unwrap()).collect();
        for text in &texts {
            let quoted = text.split('"').filter_map(|word| word.strip_prefix("./").or(word.strip_prefix("/assets/")));
            for name in quoted {
                assert!(page.file(name).is_some(), "{name}");
            }
        }
        for name in page.files.keys() {
            assert!(texts.iter().any(|text| text.contains(name.as_str())), "nothing names {name}");
        }
    }

    #[test]
    fn nothing_makes_elements_of_text_and_nothing_is_external() {
        let forbidden = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "style=",
            "setAttribute(\"style",
            "javascript:",
            "<script>",
            "DOMParser",
            "createContextualFragment",
            "srcdoc",
            "WebSocket",
            "EventSource",
        ];
        for (name, text) in texts() {
            for word in forbidden {
                assert!(!text.contains(word), "{name} has {word}");
            }
            let namespaces = text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(text.matches("://").count(), namespaces, "{name} names something elsewhere");
            let is_handler = |word: &str| word.starts_with("on") && word.contains("=\"");
            assert!(!text.split_whitespace().any(is_handler), "{name} has an inline handler");
        }
    }

    #[test]
    fn all_scripts_are_asked_for_at_once() {
        // Else a browser asks for each when it has read the one that imports it.
        let index = std::str::from_utf8(INDEX).unwrap();
        for (name, _, _) in FILES.iter().filter(|(_, content_type, _)| *content_type == JAVASCRIPT) {
            assert!(index.contains(&format!("\"/assets/{name}\"")), "{name}");
        }
    }

    #[test]
    fn the_page_is_small() {
        let bytes: usize = texts().iter().map(|(_, text)| text.len()).sum();
        assert!(bytes <= 100 << 10, "{bytes} bytes");
    }
}
