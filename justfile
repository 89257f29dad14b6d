# The daily commands. `just` lists them; `just test agreement` runs the tests of one module.

_default:
    @just --list

# Train the MNIST network with this machine's devices
train *FLAGS:
    cargo run --example mnist_ddp -- {{FLAGS}}

# Type-check everything, the fast loop
check:
    cargo check --workspace --all-targets

# Run all tests, or those whose path contains a text, such as `agreement` or `stores::`
test *FILTER:
    cargo test -- {{FILTER}}

# Format the code
format:
    cargo fmt --all

# Run clippy with warnings as errors
lint:
    cargo clippy --all-targets -- -D warnings

# Check advisories, licences and sources of the dependencies
deny:
    cargo deny check

# Show the book in a browser
book:
    mdbook serve book --open

# Open the API documentation
doc:
    cargo doc --no-deps --open

# Run everything that must pass before a change lands
ci:
    .ci/run

# Train under random faults
chaos RUNS="20":
    scripts/chaos {{RUNS}}

# Fuzz everything that reads untrusted input
fuzz SECONDS="60":
    scripts/fuzz {{SECONDS}}

# Check threads and unsafe code: models, Miri, ThreadSanitizer, AddressSanitizer
check-concurrency *CHECKS:
    scripts/check-concurrency {{CHECKS}}
