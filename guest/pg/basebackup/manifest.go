package basebackup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// manifest is a backup_manifest of version 1.
type manifest struct {
	files map[string]manifestEntry
}

type manifestEntry struct {
	size int64
	crc  string // CRC-32C, its four bytes from the lowest on in hex
}

// parseManifest reads a manifest and checks its own checksum, which is over all that
// comes before the line that has it.
func parseManifest(raw []byte) (manifest, error) {
	damaged := func(format string, args ...any) (manifest, error) {
		return manifest{}, fmt.Errorf("%w: %s: %s", ErrDamaged, manifestFile, fmt.Sprintf(format, args...))
	}
	var doc struct {
		Version int `json:"PostgreSQL-Backup-Manifest-Version"`
		Files   []struct {
			Path        *string `json:"Path"`
			EncodedPath *string `json:"Encoded-Path"` // hex, where a name is no UTF-8
			Size        int64   `json:"Size"`
			Algorithm   string  `json:"Checksum-Algorithm"`
			Checksum    string  `json:"Checksum"`
		} `json:"Files"`
		Checksum string `json:"Manifest-Checksum"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return damaged("%v", err)
	}
	if doc.Version != 1 {
		return damaged("its version is %d", doc.Version)
	}
	line := bytes.LastIndex(raw, []byte(`"Manifest-Checksum"`))
	if line < 0 {
		return damaged("it has no checksum")
	}
	if sum := sha256.Sum256(raw[:line]); hex.EncodeToString(sum[:]) != doc.Checksum {
		return damaged("its checksum is another")
	}
	m := manifest{files: make(map[string]manifestEntry, len(doc.Files))}
	for _, f := range doc.Files {
		var path string
		switch {
		case f.Path != nil:
			path = *f.Path
		case f.EncodedPath != nil:
			raw, err := hex.DecodeString(*f.EncodedPath)
			if err != nil {
				return damaged("%v", err)
			}
			path = string(raw)
		}
		if _, twice := m.files[path]; twice || path == "" || f.Size < 0 {
			return damaged("the entry %.100q", path)
		}
		if f.Algorithm != "CRC32C" {
			return damaged("%.100q has a checksum by %.20q", path, f.Algorithm)
		}
		m.files[path] = manifestEntry{f.Size, f.Checksum}
	}
	return m, nil
}
