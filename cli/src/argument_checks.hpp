#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

/// What options may be given. CLI11 converts numbers as C does: too large ones become the largest there is, "010" is 8, and it compares
/// in a way that lets "nan" pass every range. These look at the text before it does.
namespace troupe::cli {

/// A whole number in decimal digits, ends included. For `transform`, not `check`: it takes zeros in front away, which C reads as octal.
CLI::Validator whole_number(std::uint64_t low, std::uint64_t high);
/// A finite number, ends included.
CLI::Validator real_number(double low, double high);
/// Any text but "".
CLI::Validator some_text();
/// The same for an option's value. "--out --json" is no directory named --json, but a value that is missing.
CLI::Validator some_value();

} // namespace troupe::cli
