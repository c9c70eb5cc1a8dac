package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// The parts of CycloneDX 1.6 that are used (https://cyclonedx.org/docs/1.6/json/).
type bill struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp  string     `json:"timestamp"`
	Component  component  `json:"component"`
	Properties []property `json:"properties"`
}

type component struct {
	Ref     string `json:"bom-ref"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// sbom is the bill of materials of a program: what go version -m shows of it. A hash is
// that of the module's files in Go's checksum database (h1), not of one archive.
func sbom(info *debug.BuildInfo, program, version string, when time.Time) ([]byte, error) {
	self := component{Type: "application", Name: program, Version: version}
	self.PURL = purl(info.Main.Path, version) + "#" + strings.TrimPrefix(info.Path, info.Main.Path+"/")
	self.Ref = self.PURL
	out := bill{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{Timestamp: when.Format(time.RFC3339), Component: self, Properties: []property{}},
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS", "GOARCH", "GOAMD64", "GOARM64", "CGO_ENABLED", "-tags":
			out.Metadata.Properties = append(out.Metadata.Properties, property{"go:build:" + strings.TrimPrefix(s.Key, "-"), s.Value})
		}
	}
	std := component{Type: "library", Name: "stdlib", Version: info.GoVersion, PURL: purl("std", strings.TrimPrefix(info.GoVersion, "go"))}
	std.Ref = std.PURL
	out.Components = []component{std}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		v := m.Version
		if v == "" || v == "(devel)" { // a module of this repository
			v = version
		}
		path := m.Path
		if strings.HasPrefix(path, "./") {
			path = info.Main.Path + strings.TrimPrefix(path, ".")
		}
		c := component{Type: "library", Name: path, Version: v, PURL: purl(path, v)}
		c.Ref = c.PURL
		if sum, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
			raw, err := base64.StdEncoding.DecodeString(sum)
			if err != nil {
				return nil, fmt.Errorf("the sum of %s: %w", m.Path, err)
			}
			c.Hashes = []hash{{"SHA-256", hex.EncodeToString(raw)}}
		}
		out.Components = append(out.Components, c)
	}
	slices.SortFunc(out.Components, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	refs := []string{}
	for _, c := range out.Components {
		refs = append(refs, c.Ref)
	}
	out.Dependencies = []dependency{{self.Ref, refs}}
	raw, err := json.MarshalIndent(out, "", " ")
	return append(raw, '\n'), err
}

// purl names a Go module (https://github.com/package-url/purl-spec, type golang).
func purl(path, version string) string {
	return "pkg:golang/" + strings.ToLower(path) + "@" + url.PathEscape(version)
}
