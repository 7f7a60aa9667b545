// Settings that must be equal on all ranks, compared while the ranks meet.
//
// Each rank publishes a digest with what it publishes anyway.  A rank that sees another digest than
// its own calls RefuseSettings; so does the other one, for digests differ both ways.  Only then do
// the texts travel, which say what differs, where, and where the values come from.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "rendezvous/store.h"

namespace rabit {

// Between the parts of one setting (name, value, source), and between settings.
inline constexpr char kPartSeparator = '\x1f';
inline constexpr char kSettingSeparator = '\x1e';

// Hexadecimal digits, equal for equal names and values, wherever these come from.
std::string SettingsDigest(std::string_view settings);

// What differs in the settings of these ranks, as part of a sentence; "" if nothing does.
// settings[i]: of rank i; empty if it is not known.
std::string DescribeDifferences(std::span<const std::string> settings);

// Tells the others this rank's settings, and returns a Mismatch that names every difference, all
// ranks and all sources.  Takes 5 s at most where a rank does not tell its own, and holds the ranks
// until each has read all, because the process that serves the store may end with this error.
// scope: begins the keys; one for each meeting.
Status RefuseSettings(Store& store, const std::string& scope, int rank, int size,
                      std::string_view settings, Deadline deadline);

}  // namespace rabit
