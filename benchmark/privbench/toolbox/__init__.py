"""What many plugins do: phases of targets, evidence of shadows, likelihood ratios, tables.

Public: plugins may import these modules. The most common names are in ``privbench`` itself. A
method's key covers the modules here that it imports, and no other ones.
"""
