"""What many plugins do, from phases of targets to files of datasets: see docs/plugins/helpers.md.

Public: plugins may import these modules. The most common names are in ``privbench`` itself. A
method's key covers the modules here that it imports, and no other ones.
"""
