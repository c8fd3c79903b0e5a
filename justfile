# The words of CONTRIBUTING.md.

export CARGO_PROFILE_DEV_DEBUG := "none"

# test CRATE ARGUMENTS: tests of one crate
test crate *arguments:
    cargo test -p posthaste-{{crate}} {{arguments}}

# seed TOKEN: replay what a simulated power cut of delivery printed
seed token:
    POSTHASTE_REPLAY={{token}} cargo test -p posthaste-delivery --test crash

# quick [BASE]: format, clippy and unit tests of the changed crates
quick *base:
    .ci/run quick {{base}}

# stage STAGE…: stages of CI
stage +stages:
    .ci/run {{stages}}

# all of CI
ci:
    .ci/run

# fuzz TARGET SECONDS
fuzz target seconds="60":
    fuzz/run {{target}} {{seconds}}

# bench CRATE ARGUMENTS: the benchmarks of one crate
bench crate *arguments:
    cargo bench -p posthaste-{{crate}} {{arguments}}

# suite SUITE ARGUMENTS: a published workload beside other servers
suite *arguments:
    cargo build --profile dist -p posthaste
    cargo run --profile dist -p posthaste-bench -- {{arguments}}

# powercut ARGUMENTS: power cuts under the real server, as root
powercut *arguments:
    cargo build -p posthaste -p posthaste-powercut
    target/debug/powercut cuts {{arguments}}
