package code

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"slices"
)

// Pack checks files, given by name, and packs them into a tar.gz for a runtime.
func Pack(runtime string, files map[string]string) ([]byte, error) {
	t := newTree()
	names := map[string]string{} // cleaned names by given name
	for _, given := range slices.Sorted(maps.Keys(files)) {
		name, err := t.add(given, false, int64(len(files[given])))
		if err != nil {
			return nil, err
		}
		names[given] = name
	}
	if err := t.complete(runtime); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for _, given := range slices.Sorted(maps.Keys(files)) {
		err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: names[given], Mode: 0o644, Size: int64(len(files[given]))})
		if err == nil {
			_, err = archive.Write([]byte(files[given]))
		}
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", names[given], err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	if err := zip.Close(); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return out.Bytes(), nil
}
