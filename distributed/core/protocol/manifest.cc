#include "distributed/core/protocol/manifest.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace leafpack::protocol {
namespace {

constexpr size_t kMaxString = 4 << 10;
// One entry is at least a flag and three empty strings.
constexpr size_t kMinEntry = 1 + 3 * 4;

uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

void Put32(std::string& out, uint32_t value) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void PutString(std::string& out, std::string_view text) {
  if (text.size() <= kMaxString) {
    Put32(out, static_cast<uint32_t>(text.size()));
    out += text;
    return;
  }
  const std::string cut =
      absl::StrCat(Clip(text, kMaxString - 24), "...#", absl::Hex(Fnv1a(text), absl::kZeroPad16));
  Put32(out, static_cast<uint32_t>(cut.size()));
  out += cut;
}

bool Get32(std::string_view& rest, uint32_t& value) {
  if (rest.size() < 4) return false;
  value = 0;
  for (int i = 0; i < 4; ++i)
    value |= static_cast<uint32_t>(static_cast<unsigned char>(rest[i])) << (8 * i);
  rest.remove_prefix(4);
  return true;
}

bool GetString(std::string_view& rest, std::string& text) {
  uint32_t n = 0;
  if (!Get32(rest, n) || n > kMaxString || n > rest.size()) return false;
  text = rest.substr(0, n);
  rest.remove_prefix(n);
  return true;
}

bool Same(const ManifestEntry& a, const ManifestEntry& b) {
  return a.argument == b.argument && a.key == b.key && a.value == b.value;
}

bool HasLeaf(const ManifestSide& side, std::string_view key) {
  return std::any_of(side.entries.begin(), side.entries.end(), [&](const ManifestEntry& entry) {
    return !entry.argument && entry.key == key;
  });
}

// "k8 (float32 [3])", "op = sum", "no such leaf".
std::string Shown(const ManifestEntry* entry) {
  if (entry == nullptr) return "no further leaf";
  if (entry->argument) return absl::StrCat(entry->printable, " = ", entry->value);
  return absl::StrCat(entry->printable, " (", entry->value, ")");
}

// Ranks that show the same thing, in order of their lowest rank.
struct Group {
  std::string shown;
  std::vector<uint32_t> ranks;
};

}  // namespace

std::string EncodeManifest(absl::Span<const ManifestEntry> entries) {
  std::string out;
  Put32(out, static_cast<uint32_t>(entries.size()));
  for (const ManifestEntry& entry : entries) {
    out.push_back(entry.argument ? 1 : 0);
    PutString(out, entry.key);
    PutString(out, entry.printable);
    PutString(out, entry.value);
  }
  return out;
}

absl::StatusOr<std::vector<ManifestEntry>> DecodeManifest(std::string_view bytes) {
  uint32_t count = 0;
  if (!Get32(bytes, count)) return absl::InvalidArgumentError("manifest: too short");
  if (count > bytes.size() / kMinEntry)
    return absl::InvalidArgumentError("manifest: more entries than bytes remain for");
  std::vector<ManifestEntry> entries(count);
  bool leaves = false;
  for (ManifestEntry& entry : entries) {
    if (bytes.empty()) return absl::InvalidArgumentError("manifest: too short");
    const auto flag = static_cast<unsigned char>(bytes[0]);
    bytes.remove_prefix(1);
    if (flag > 1)
      return absl::InvalidArgumentError("manifest: an entry that is neither argument nor leaf");
    entry.argument = flag == 1;
    if (entry.argument && leaves)
      return absl::InvalidArgumentError("manifest: an argument after a leaf");
    leaves = !entry.argument;
    if (!GetString(bytes, entry.key) || !GetString(bytes, entry.printable) ||
        !GetString(bytes, entry.value)) {
      return absl::InvalidArgumentError(
          "manifest: a string over its limit or longer than what remains");
    }
  }
  if (!bytes.empty()) return absl::InvalidArgumentError("manifest: bytes left over");
  return entries;
}

Difference DescribeDifference(absl::Span<const ManifestSide> sides, const RankNamer& name) {
  Difference difference;
  const ManifestSide* largest = nullptr;
  for (const ManifestSide& side : sides) {
    if (largest == nullptr || side.ranks.size() > largest->ranks.size()) largest = &side;
  }
  for (const ManifestSide& side : sides) {
    if (&side != largest)
      difference.ranks.insert(difference.ranks.end(), side.ranks.begin(), side.ranks.end());
  }
  std::sort(difference.ranks.begin(), difference.ranks.end());

  std::vector<const ManifestSide*> known;
  std::vector<uint32_t> unknown;
  for (const ManifestSide& side : sides) {
    if (side.known) {
      known.push_back(&side);
    } else {
      unknown.insert(unknown.end(), side.ranks.begin(), side.ranks.end());
    }
  }
  std::sort(unknown.begin(), unknown.end());
  std::string missing;
  if (!unknown.empty())
    missing = absl::StrCat("no description came from ", RanksText(unknown, name));
  if (known.size() < 2) {
    std::string parts;
    for (const ManifestSide& side : sides)
      absl::StrAppend(&parts, parts.empty() ? "" : " from ", RanksText(side.ranks, name));
    difference.text =
        absl::StrCat("the calls differ: ", parts, missing.empty() ? "" : "; ", missing);
    return difference;
  }

  size_t longest = 0;
  for (const ManifestSide* side : known) longest = std::max(longest, side->entries.size());
  for (size_t i = 0; i < longest; ++i) {
    auto at = [i](const ManifestSide* side) {
      return i < side->entries.size() ? &side->entries[i] : nullptr;
    };
    const ManifestEntry* first = at(known[0]);
    bool differs = false;
    for (const ManifestSide* side : known) {
      const ManifestEntry* entry = at(side);
      if ((entry == nullptr) != (first == nullptr) || (entry != nullptr && !Same(*entry, *first)))
        differs = true;
    }
    if (!differs) continue;
    // A leaf that some side lacks, rather than the one that it has in its place.
    const ManifestEntry* named = nullptr;
    for (const ManifestSide* side : known) {
      const ManifestEntry* entry = at(side);
      if (entry == nullptr || entry->argument) continue;
      if (named == nullptr) named = entry;
      if (std::any_of(known.begin(), known.end(),
                      [&](const ManifestSide* other) { return !HasLeaf(*other, entry->key); })) {
        named = entry;
        break;
      }
    }
    if (named != nullptr) difference.path = named->printable;
    std::vector<Group> groups;
    for (const ManifestSide* side : known) {
      std::string shown = Shown(at(side));
      auto same = std::find_if(groups.begin(), groups.end(),
                               [&](const Group& g) { return g.shown == shown; });
      if (same == groups.end()) same = groups.insert(groups.end(), Group{std::move(shown), {}});
      same->ranks.insert(same->ranks.end(), side->ranks.begin(), side->ranks.end());
    }
    std::string text;
    for (Group& group : groups) {
      std::sort(group.ranks.begin(), group.ranks.end());
      absl::StrAppend(&text, text.empty() ? "" : ", ", RanksText(group.ranks, name),
                      group.ranks.size() == 1 ? " has " : " have ", Clip(group.shown, 512));
    }
    if (groups.size() == 1) absl::StrAppend(&text, " (equal in print, not in content)");
    if (!missing.empty()) absl::StrAppend(&text, "; ", missing);
    difference.text = std::move(text);
    return difference;
  }
  difference.text = absl::StrCat("the digests differ though the descriptions are equal",
                                 missing.empty() ? "" : "; ", missing);
  return difference;
}

}  // namespace leafpack::protocol
