"""One extension. Cython finds the .pxd files of the kvcore that is installed: there is nothing to configure."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(ext_modules=cythonize(
    [Extension("kvcore_consumer.loop", ["kvcore_consumer/loop.pyx"])], compiler_directives={"language_level": 3}))
