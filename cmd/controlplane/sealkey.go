package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/raftstore/seal"
)

func sealKeyCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "seal-key",
		Short: "Show or rotate the keys that seal the secrets in the control store",
		Long: `Seal-key shows or changes seal.key in a replica's directory. It changes this file
alone: copy it to the other replicas, whose files must say the same, with the same
owner and mode. A replica that runs reads it again within seconds.

To rotate the sealing key, without a stop:
  1. controlplane seal-key add, and copy the file. The new key opens and does not
     seal yet. Go on when each replica has it: its log says "the sealing keys have
     changed", and its /metrics berth_sealing_keys{key="NEW"}.
  2. controlplane seal-key use NEW, and copy the file. The leader seals everything
     again within minutes; its /metrics count what each key has left
     (berth_sealed_values).
  3. After a day: controlplane seal-key rm OLD, and copy the file. Until then answers
     to creates, and tokens of previews, still have the old key.
Keep the file of before with your backups: those made before need it.`,
		Example: `  controlplane seal-key ls --pki-dir /etc/berth/pki
  controlplane seal-key add
  controlplane seal-key use 0a1b2c3d`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&dir, "pki-dir", os.Getenv("BERTH_PKI_DIR"), "directory that init wrote for a replica (default BERTH_PKI_DIR)")
	// change saves what is done to the keys.
	change := func(do func(keys *seal.Keyring) (string, error)) func(cmd *cobra.Command) error {
		return func(cmd *cobra.Command) error {
			path, keys, err := sealKeys(dir)
			if err != nil {
				return err
			}
			said, err := do(keys)
			if err != nil {
				return err
			}
			if err := saveSealKeys(path, keys); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\ncopy %s to every other replica\n", said, path)
			return nil
		}
	}
	withID := func(do func(keys *seal.Keyring, id seal.KeyID) (string, error)) func(cmd *cobra.Command, args []string) error {
		return func(cmd *cobra.Command, args []string) error {
			id, err := seal.ParseKeyID(args[0])
			if err != nil {
				return err
			}
			return change(func(keys *seal.Keyring) (string, error) { return do(keys, id) })(cmd)
		}
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "ls", Short: "List the keys, oldest first", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, keys, err := sealKeys(dir)
				if err != nil {
					return err
				}
				listSealKeys(cmd.OutOrStdout(), keys)
				return nil
			},
		},
		&cobra.Command{
			Use: "add", Short: "Add a key that opens, and does not seal yet", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return change(func(keys *seal.Keyring) (string, error) {
					id, err := keys.Add()
					return fmt.Sprintf("key %s is added", id), err
				})(cmd)
			},
		},
		&cobra.Command{
			Use: "use KEY", Short: "Seal with a key, which every replica must have by now", Args: cobra.ExactArgs(1),
			RunE: withID(func(keys *seal.Keyring, id seal.KeyID) (string, error) {
				return fmt.Sprintf("key %s seals from now on", id), keys.SetPrimary(id)
			}),
		},
		&cobra.Command{
			Use: "rm KEY", Short: "Remove a key: what is still sealed with it never opens again", Args: cobra.ExactArgs(1),
			RunE: withID(func(keys *seal.Keyring, id seal.KeyID) (string, error) {
				return fmt.Sprintf("key %s is removed", id), keys.Remove(id)
			}),
		},
	)
	return cmd
}

func sealKeys(dir string) (path string, keys *seal.Keyring, err error) {
	if dir == "" {
		return "", nil, errors.New("which replica? Give --pki-dir, or set BERTH_PKI_DIR")
	}
	path = filepath.Join(dir, pki.FileSealKey)
	keys, err = seal.Load(path)
	return path, keys, err
}

func saveSealKeys(path string, keys *seal.Keyring) error {
	return pki.ReplaceFile(path, func(next string, _ os.FileMode) error { return keys.Save(next) }) // it is for its owner alone
}

func listSealKeys(out io.Writer, keys *seal.Keyring) {
	for _, id := range keys.Keys() {
		note := ""
		if id == keys.Primary() {
			note = "  seals"
		}
		fmt.Fprintf(out, "%s%s\n", id, note)
	}
}
