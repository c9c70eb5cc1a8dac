// Command importrules checks the import rules of .golangci.yml by themselves, so that
// they need no linter that takes minutes to build. `go vet` runs it on each package
// and caches the result:
//
//	go vet -vettool=bin/importrules -importrules.config="$PWD/.golangci.yml" -importrules.sum=SUM ./...
//
// SUM is any value that changes with the file: what `go vet` caches depends on flags and
// on the package, not on a file that they name.
//
// The rules are depguard's, and so is the code that checks them.
package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/OpenPeeDeeP/depguard/v2"
	"go.yaml.in/yaml/v3"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() {
	checker := &analysis.Analyzer{Name: "importrules", Doc: "report imports that .golangci.yml forbids"}
	config := checker.Flags.String("config", "", "the file with the rules (absolute path of .golangci.yml)")
	checker.Flags.String("sum", "", "a checksum of that file")
	rules := sync.OnceValues(func() (*analysis.Analyzer, error) { return read(*config) })
	checker.Run = func(pass *analysis.Pass) (any, error) {
		a, err := rules()
		if err != nil {
			return nil, err
		}
		return a.Run(pass)
	}
	unitchecker.Main(checker)
}

// read returns the checker of the rules in a configuration of golangci-lint.
func read(path string) (*analysis.Analyzer, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct {
						ListMode string   `yaml:"list-mode"`
						Files    []string `yaml:"files"`
						Allow    []string `yaml:"allow"`
						Deny     []struct {
							Pkg  string `yaml:"pkg"`
							Desc string `yaml:"desc"`
						} `yaml:"deny"`
					} `yaml:"rules"`
				} `yaml:"depguard"`
			} `yaml:"settings"`
		} `yaml:"linters"`
	}
	if err := yaml.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	rules := config.Linters.Settings.Depguard.Rules
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s: it has no rules at linters.settings.depguard.rules", path)
	}
	settings := depguard.LinterSettings{}
	for name, rule := range rules {
		list := &depguard.List{ListMode: rule.ListMode, Files: rule.Files, Allow: rule.Allow, Deny: map[string]string{}}
		for _, d := range rule.Deny {
			list.Deny[d.Pkg] = d.Desc
		}
		settings[name] = list
	}
	return depguard.NewAnalyzer(&settings)
}
