package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/controlplane"
	"github.com/berth-cloud/berth/controlplane/cluster"
)

func salvageCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "salvage FILE",
		Short: "Write a backup from the data of a replica that does not run",
		Args:  cobra.ExactArgs(1),
		Long: `Salvage writes a backup of what a replica's data directory holds to FILE. The
replica must be stopped; its data stays as it is.

It is for a cluster that has lost its majority for good: two of three replicas. The
last one has the records, but cannot prove that it has the newest, and so answers
nothing. Put the backup into a new cluster, as docs/operations.md describes ("Two of
three replicas are lost"). Writes whose outcome nobody was told may be in it. If the
last one was behind when the others were lost, it lacks what it had not heard.

A cluster that the backup is restored into refuses the replicas of the old one, unless
they are its members: give new members new names, so that the lost ones stay out.`,
		Example: `  systemctl stop berth-controlplane
  controlplane salvage --data-dir /var/lib/berth /root/berth.backup`,
	}
	cmd.Flags().StringVar(&dir, "data-dir", os.Getenv("BERTH_DATA_DIR"), "the replica's data directory (default BERTH_DATA_DIR)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if dir == "" {
			return errors.New("salvage needs --data-dir or BERTH_DATA_DIR")
		}
		var last uint64
		var former []string
		err := atomicfile.WriteFrom(args[0], 0o600, func(w io.Writer) (err error) {
			last, former, err = cluster.Salvage((&controlplane.Config{DataDir: dir}).StoreDir(), w)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: all records up to log entry %d\n", args[0], last)
		fmt.Fprintf(cmd.OutOrStdout(), "a cluster that it is restored into trusts the replicas of before (%s) only if they are members\n", strings.Join(former, ", "))
		return nil
	}
	return cmd
}
