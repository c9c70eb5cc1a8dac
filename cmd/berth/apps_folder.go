package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/controlplane/api"
)

// rememberedApp is the file in a folder that says which app it is deployed as.
const rememberedApp = ".berth-app"

// maxRemembered bounds that file, in bytes.
const maxRemembered = 4096

// remembered is its content.
type remembered struct {
	AppID string `json:"app_id"`
}

func (a *app) deployHere() *cobra.Command {
	var name string
	var detach bool
	cmd := &cobra.Command{
		Use:   "deploy [DIR | APP]",
		Short: "Deploy a folder or an app and print its URL",
		Long: `Deploy a folder, by default this one, show the log until it is live, and print its
URL. The first time, an app is made that is named after the folder; its id is kept
in .berth-app there, so that the next deployment is of the same app. "berth app"
changes and removes it.

Where there is no such folder, an app of that name is deployed again, from its
repository or its last upload.`,
		Example: `  berth deploy
  curl $(berth deploy ./shop)
  berth app env set shop GREETING=hi && berth deploy shop`,
		Args: wants(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := append(args, ".")[0]
			if _, err := os.Stat(what); !errors.Is(err, fs.ErrNotExist) || isPath(what) {
				return a.deployFolder(cmd.Context(), what, name, detach)
			}
			c, one, err := a.theApp(cmd.Context(), what)
			if _, none := errors.AsType[*noAppError](err); none || api.StatusOf(err) == http.StatusNotFound {
				return fmt.Errorf("there is no folder %s and no app of that name: berth app ls", what)
			}
			if err != nil {
				return err
			}
			return a.deploy(cmd.Context(), c, one, api.CreateDeployment{}, "", detach)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the app, if it is made now (default: the folder's)")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the deployment's id and do not wait")
	return cmd
}

// deployFolder deploys a folder as the app that it remembers, or as a new one.
func (a *app) deployFolder(ctx context.Context, dir, name string, detach bool) error {
	full, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := isFolder(dir); err != nil {
		return err
	}
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return err
	}
	one, err := a.appOfFolder(ctx, c, full, name)
	if err != nil {
		return err
	}
	return a.deploy(ctx, c, one, api.CreateDeployment{}, full, detach)
}

// isFolder refuses what is no folder.
func isFolder(dir string) error {
	switch st, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no folder %s: no such file or directory", dir)
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%s is no folder: give the one that it is in", dir)
	}
	return nil
}

func (a *app) appOfFolder(ctx context.Context, c *api.Client, dir, name string) (*api.App, error) {
	file := filepath.Join(dir, rememberedApp)
	id, err := recall(file)
	if err != nil {
		return nil, err
	}
	if id != "" {
		one, err := c.GetApp(ctx, id)
		if api.StatusOf(err) == http.StatusNotFound {
			err = fmt.Errorf("app %s, which %s names, is gone, or another workspace's: remove the file to make a new one", id, file)
		}
		return one, err
	}
	if name == "" {
		name = filepath.Base(dir)
	}
	one, err := c.CreateApp(ctx, api.CreateApp{Name: name, Source: new(api.AppFromUpload)}, "berth-"+rand.Text())
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(remembered{AppID: one.ID})
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(file, append(raw, '\n'), 0o644); err != nil {
		return nil, fmt.Errorf("app %s is made, and cannot be remembered: %w", one.ID, err)
	}
	a.note("made app %s, named %s", one.ID, one.Name)
	return one, nil
}

// recall reads the id of the app in a file, "" where there is none.
func recall(file string) (string, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxRemembered))
	if err != nil {
		return "", err
	}
	var r remembered
	if err := json.Unmarshal(raw, &r); err != nil || r.AppID == "" {
		return "", fmt.Errorf(`%s is damaged: want {"app_id": "app-…"}; remove it to make a new app`, file)
	}
	return r.AppID, nil
}
