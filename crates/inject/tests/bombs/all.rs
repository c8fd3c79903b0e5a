//! Templates that grow, for the tests of the crate and the one that meters memory. Their variables: `x`, a text of 100,000 octets, and `l`, a list of 100.

/// Templates whose rendering must fail.
pub fn all() -> Vec<String> {
    let doubling = "{% set x = x ~ x %}".repeat(64);
    let doubling_text = "{% set x = x|string %}{% set x = x ~ x %}".repeat(64);
    let loops = "{% for a in l %}".repeat(9) + "x" + &"{% endfor %}".repeat(9);
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000));
    let nested = "{% if x %}".repeat(10_000);
    let fixed = [
        "{{ 'x' * 100000000 }}",
        "{{ 100000000 * x }}",
        "{{ [x] * 100000000 }}",
        "{{ x ~ x }}",
        "{{ x + x }}",
        "{{ l + l }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% set y %}{{ x }}{{ x }}{% endset %}",
        "{% filter upper %}{{ x }}{% endfilter %}",
        "{% for a in l recursive %}{{ loop(l) }}{% endfor %}",
        "{{ x|replace('x', x) }}",
        "{{ l|join(x) }}",
        "{{ x|indent(1000000000) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ range(1000000000) }}",
        "{{ x[::1] }}",
        "{% include 'x' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% autoescape false %}{{ x }}{% endautoescape %}",
        "{% for a in l %}{% for b in l %}{% for c in l %}{{ x }}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in l %}{% for b in l %}{% for c in l %}{% if x|upper == 'y' %}{% endif %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))",
        "{{ x.y.z }}",
        "{% for a in l %}{% for b in l %}{{ x }}{% endfor %}{% endfor %}",
        "{% for a in l %}{% for b in l %}{{ x|upper }}{% endfor %}{% endfor %}",
    ];
    fixed.map(str::to_owned).into_iter().chain([doubling, doubling_text, loops, deep, nested]).collect()
}
