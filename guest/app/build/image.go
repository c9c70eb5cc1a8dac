package build

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/berth-cloud/berth/guest/app/image"
)

// image builds the app's image. The app's variables are values of the ARGs that the
// Dockerfile declares, and nothing else in it sees them.
func (b *builder) image(ctx context.Context) error {
	if b.Image == nil {
		return image.ErrNone
	}
	vars := maps.Clone(b.in.Env)
	if vars == nil {
		vars = map[string]string{}
	}
	maps.Copy(vars, ports(b.in.Port))
	b.say("Build: %s", b.found.Plan.Dockerfile)
	made, err := b.Image.Build(ctx, image.Input{Context: b.made.Dir, Dockerfile: b.found.Plan.Dockerfile, Vars: vars}, b.out)
	if failed := (*image.FailedError)(nil); errors.As(err, &failed) {
		return fmt.Errorf("%w%s", err, b.tail())
	}
	if err != nil {
		return err
	}
	if len(made.Argv()) == 0 && b.in.StartCommand == "" {
		return fmt.Errorf("%w: it has neither ENTRYPOINT nor CMD: add one to the Dockerfile, or set start_command", image.ErrBad)
	}
	b.made.Image = &made
	if b.found.Plan.StartCommand == "" {
		b.found.Plan.StartCommand = quoted(made.Argv())
		b.setPlan()
	}
	return nil
}

// quoted is a command as one would type it.
func quoted(argv []string) string {
	words := make([]string, len(argv))
	for i, word := range argv {
		if words[i] = word; word == "" || strings.ContainsAny(word, " \t\n'\"\\$`*?#~=%|&;<>(){}[]!") {
			words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
