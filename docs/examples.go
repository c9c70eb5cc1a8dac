// Package docs finds the examples of api.md, so that tests can run them.
package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// Example is a block of shell commands of a document.
type Example struct {
	Line int    // of its first command in the document, from 1
	Text string // its lines
	// Skip is why it is not run with the others: the rest of its first line, which
	// begins with "# Skip: ". Empty: it is run.
	Skip string
}

// Refused matches a command that shows an error: it ends with a comment that begins
// with the status.
var Refused = regexp.MustCompile(`(?m)^(curl [^|\n]*?) +# ([45]\d\d)\b.*$`)

// Examples returns the blocks of shell commands of a document, in its order.
func Examples(page string) ([]Example, error) {
	var all []Example
	fence, begin := "", 0 // the open one, and its line
	var text strings.Builder
	n := 0
	for line := range strings.Lines(page) {
		n++
		switch opens := strings.HasPrefix(line, "```"); {
		case opens && fence == "":
			fence, begin = strings.TrimSpace(line), n
			text.Reset()
		case opens && strings.TrimSpace(line) != "```", fence != "" && strings.HasPrefix(line, "## "):
			return nil, fmt.Errorf("line %d: the block of line %d has no end", n, begin)
		case opens:
			if fence == "```sh" {
				e := Example{Line: begin + 1, Text: text.String()}
				if first, _, _ := strings.Cut(e.Text, "\n"); strings.HasPrefix(first, "# Skip: ") {
					e.Skip = strings.TrimPrefix(first, "# Skip: ")
				}
				all = append(all, e)
			}
			fence = ""
		case fence != "":
			text.WriteString(line)
		}
	}
	if fence != "" {
		return nil, fmt.Errorf("the block of line %d has no end", begin)
	}
	return all, nil
}
