package hostapi

import "github.com/berth-cloud/berth/redact"

// IDLength is the length of a box id: 130 random bits in base32.
const IDLength = 26

// ValidID reports whether id is a box id: IDLength characters of lower-case
// base32 (a–z, 2–7). It is the guard between a request's path and every file,
// socket and cgroup that is named after a box.
func ValidID(id string) bool {
	if len(id) != IDLength {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

// ShortID is what of a box id may be shown where people and logs read: an id
// is a bearer credential (of preview URLs).
func ShortID(id string) string { return redact.ID(id) }
