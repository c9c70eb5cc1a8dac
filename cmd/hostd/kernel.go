package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/hostd/image/kernel"
)

// kernelCommand is used by scripts/fetch-kernel.
func kernelCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "kernel", Short: "Prepare a guest kernel"}
	cmd.AddCommand(&cobra.Command{
		Use:   "extract PACKAGE-ROOT DIR",
		Short: "Extract vmlinux and the modules that guests need from an unpacked kernel package",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			release, err := kernel.Extract(args[0], args[1])
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), release)
			return nil
		},
	})
	return cmd
}
