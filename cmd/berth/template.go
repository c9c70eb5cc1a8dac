package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) template() *cobra.Command {
	return group("template", "Show and build templates",
		`A template is what sandboxes are created from: a root file system, and the
stored state of a guest that was booted from it once.`,
		a.templateList(), a.templateBuild(), a.templateBuilds(), a.templateLogs(), a.templateRemove())
}

func (a *app) templateList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List templates, newest first", Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.Template{}
			for t, err := range c.Templates(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, t)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"NAME", "STATUS", "CPU", "MEMORY", "DISK", "SIZE", "UPDATED"}}
			for _, t := range all {
				rows = append(rows, []string{
					t.Name, string(t.Status), fmt.Sprint(t.CPU), fmt.Sprintf("%d MB", t.MemoryMB), fmt.Sprintf("%d MB", t.DiskMB),
					size(t.SizeBytes), age(t.UpdatedAt.Time),
				})
			}
			return a.table(rows)
		},
	}
}

func (a *app) templateBuild() *cobra.Command {
	var file string
	var detach bool
	cmd := &cobra.Command{
		Use:   "build -f FILE",
		Short: "Build a template and show the progress",
		Long: `Build a template from a YAML or JSON file with the fields of
POST /v1/templates/build, and print the build's log. On a terminal, a progress
bar is shown below it. Ctrl-C stops the output; the build continues.`,
		Example: `  berth template build -f template.yaml
  printf 'name: web\nfrom: base\nrun: [apt-get install -y nginx]\n' | berth template build -f -`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usage(cmd, "-f is missing: the file to build from")
			}
			in, err := a.readBuild(file)
			if err != nil {
				return err
			}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			b, err := c.BuildTemplate(cmd.Context(), in, "berth-"+rand.Text())
			if err != nil {
				return err
			}
			if detach {
				if a.json {
					return a.printJSON(b)
				}
				fmt.Fprintln(a.stdout, b.ID)
				return nil
			}
			a.note("build %s of %s", b.ID, b.Template)
			return a.followBuild(cmd.Context(), c, b.ID)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", `file to build from; "-" is stdin`)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the build's id and do not wait")
	return cmd
}

// maxBuildFile bounds the file of a build, in bytes.
const maxBuildFile = 8 << 20

// readBuild reads YAML (or JSON, which is a subset) with the API's field names.
func (a *app) readBuild(file string) (in api.BuildTemplate, err error) {
	var r io.Reader = a.stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return in, err
		}
		defer f.Close()
		r = f
	}
	var def struct {
		Name  string            `yaml:"name"`
		From  string            `yaml:"from"`
		Run   []string          `yaml:"run"`
		Files map[string]string `yaml:"files"`
		Env   map[string]string `yaml:"env"`
		Start string            `yaml:"start"`
		Ready *struct {
			Port           *int   `yaml:"port"`
			Cmd            string `yaml:"cmd"`
			TimeoutSeconds *int   `yaml:"timeout_seconds"`
		} `yaml:"ready"`
		CPU      *int `yaml:"cpu"`
		MemoryMB *int `yaml:"memory_mb"`
		DiskMB   *int `yaml:"disk_mb"`
	}
	dec := yaml.NewDecoder(io.LimitReader(r, maxBuildFile))
	dec.KnownFields(true)
	if err := dec.Decode(&def); err != nil {
		return in, fmt.Errorf("%s: %w", file, plainYAML(err))
	}
	in = api.BuildTemplate{
		Name: def.Name, From: def.From, Run: def.Run, Files: def.Files, Env: def.Env, Start: def.Start,
		CPU: def.CPU, MemoryMB: def.MemoryMB, DiskMB: def.DiskMB,
	}
	if r := def.Ready; r != nil {
		in.Ready = &api.TemplateCheck{Port: r.Port, Cmd: r.Cmd, TimeoutSeconds: r.TimeoutSeconds}
	}
	return in, nil
}

// Errors of YAML that contain Go's types.
var (
	unknownField = regexp.MustCompile(`^(line \d+): field (.*) not found in type `)
	wrongType    = regexp.MustCompile(`^(line \d+): cannot unmarshal !!\w+ (.*) ?into (.*)$`)
)

// plainYAML says in one line and without Go's types what is wrong with a file.
func plainYAML(err error) error {
	var bad *yaml.TypeError
	if !errors.As(err, &bad) || len(bad.Errors) == 0 {
		return err
	}
	if m := unknownField.FindStringSubmatch(bad.Errors[0]); m != nil {
		return fmt.Errorf("%s: unknown field %q", m[1], m[2])
	}
	if m := wrongType.FindStringSubmatch(bad.Errors[0]); m != nil {
		want := "an object"
		switch {
		case m[3] == "int":
			want = "an integer"
		case m[3] == "string":
			want = "a string"
		case strings.HasPrefix(m[3], "[]"):
			want = "a list of strings"
		case strings.HasPrefix(m[3], "map["):
			want = "an object of strings"
		}
		return fmt.Errorf("%s: want %s", m[1], want)
	}
	return errors.New(bad.Errors[0])
}

func (a *app) followBuild(ctx context.Context, c *api.Client, id string) error {
	bar := a.buildBar()
	end, err := c.FollowBuild(ctx, id, func(l api.BuildLog) error {
		if a.json {
			return a.printLine(l)
		}
		return bar.line(l.Line)
	})
	bar.stop()
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printLine(end); err != nil {
			return err
		}
	}
	if end.Status != api.TemplateReady {
		reason := ""
		if end.Error != nil {
			reason = ": " + *end.Error
		}
		return fmt.Errorf("build %s is %s%s", id, end.Status, reason)
	}
	a.note("ready")
	return nil
}

func (a *app) templateBuilds() *cobra.Command {
	return &cobra.Command{
		Use: "builds NAME", Short: "List the builds of a template, newest first", Args: wants(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.Build{}
			for b, err := range c.Builds(cmd.Context(), args[0]) {
				if err != nil {
					return err
				}
				all = append(all, b)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"ID", "STATUS", "AGE", "ERROR"}}
			for _, b := range all {
				reason := "-"
				if b.Error != nil {
					reason = *b.Error
				}
				rows = append(rows, []string{b.ID, string(b.Status), age(b.CreatedAt.Time), reason})
			}
			return a.table(rows)
		},
	}
}

func (a *app) templateLogs() *cobra.Command {
	return &cobra.Command{
		Use: "logs BUILD", Short: "Print a build's log until the build ends", Args: wants(1, 1, "BUILD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.followBuild(cmd.Context(), c, args[0])
		},
	}
}

func (a *app) templateRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"delete"}, Short: "Delete your own templates", Args: wants(1, -1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(name string) error { return c.DeleteTemplate(cmd.Context(), name) })
		},
	}
}

func (a *app) volume() *cobra.Command {
	var mb int
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a volume", Args: wants(1, 1, "NAME"),
		Long: `Create a file system that outlives sandboxes. Attach it to one sandbox at a time
when you create the sandbox: berth sandbox create --volume NAME:/path.`,
		Example: `  berth volume create data --size 1024
  berth sandbox create --volume data:/data`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.CreateVolume{Name: args[0]}
			if cmd.Flags().Changed("size") {
				in.SizeMB = &mb
			}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			v, err := c.CreateVolume(cmd.Context(), in, "berth-"+rand.Text())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(v)
			}
			fmt.Fprintln(a.stdout, v.Name)
			return nil
		},
	}
	create.Flags().IntVar(&mb, "size", 256, "size in MiB, 16 to 65536")
	list := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List volumes, newest first", Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.Volume{}
			for v, err := range c.Volumes(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, v)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"NAME", "SIZE", "USED", "HOST", "ATTACHED TO", "AGE"}}
			for _, v := range all {
				to := "-"
				if v.AttachedTo != nil {
					to = *v.AttachedTo
				}
				rows = append(rows, []string{v.Name, fmt.Sprintf("%d MiB", v.SizeMB), size(v.UsedBytes), orDash(v.AgentID), to, age(v.CreatedAt.Time)})
			}
			return a.table(rows)
		},
	}
	remove := &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"delete"}, Short: "Delete volumes and their contents", Args: wants(1, -1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(name string) error { return c.DeleteVolume(cmd.Context(), name) })
		},
	}
	return group("volume", "Create and delete file systems that outlive sandboxes", "", create, list, remove)
}
